"""Who goes first where all processors are busy: the doors, and what holds the interpreter.

A thread that computes without the interpreter may wait. One that holds it may not: all others wait
for it, however urgent they are (priority inversion; Lampson and Redell 1980,
https://doi.org/10.1145/358818.358824).
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pipework.closeable import Closing

T = TypeVar("T")
NICE = 10  # of the threads that compute; all others have 0


class Behind(Closing):
    """A thread that steps back behind all others, for what a runtime does.

    Threads that the runtime starts there step back too: on Linux a thread has a priority of its
    own, which those that it starts inherit.
    """

    def __init__(self) -> None:
        """Start no thread yet."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runtime", initializer=_step_back)

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns there; it should hold the interpreter as little as it can."""
        return self.start(work).result()

    def start(self, work: Callable[[], T]) -> "Future[T]":
        """Begin with what `call` waits for."""
        return self._thread.submit(work)

    def close(self) -> None:
        """End the thread. Closing twice is allowed."""
        self._thread.shutdown()


def _step_back() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def cpu_limit(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return how many CPUs this process may use: its affinity, or the container's quota if less.

    The quota is read as cgroup version 2 writes it, "microseconds period" or "max period".
    """
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))
