"""Thread priorities: computing threads yield to those that need the interpreter.

A thread that computes without the GIL may wait for a CPU. A thread that holds the GIL must not:
all other threads would wait for it (priority inversion; Lampson and Redell 1980,
https://doi.org/10.1145/358818.358824).
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from pipework.closeable import Closeable

T = TypeVar("T")
NICE = 10  # nice value of the computing threads; the others have 0


class LowPriorityThread(Closeable):
    """A thread of low priority in which a runtime computes.

    Threads that the runtime starts from it have low priority too: on Linux each thread has its own
    nice value, which new threads inherit.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="runtime", initializer=_lower_priority
        )

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread and return its result; it should rarely hold the GIL."""
        return self.start(work).result()

    def start(self, work: Callable[[], T]) -> "Future[T]":
        """Start `work` in the thread and return its future."""
        return self._thread.submit(work)

    def close(self) -> None:
        """End the thread. Closing twice is allowed."""
        self._thread.shutdown()


def _lower_priority() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
