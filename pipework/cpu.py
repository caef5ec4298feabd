"""The processor: its model, because int8 and bf16 results depend on it; usable CPUs; priorities.

A thread that computes without the GIL may wait for a CPU. A thread that holds the GIL must not:
all other threads would wait for it (priority inversion; Lampson and Redell 1980,
https://doi.org/10.1145/358818.358824).
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from pipework.closeable import Closeable

CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
# Instruction sets that determine how int8 and bf16 products are summed.
INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)


@cache
def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor and its instruction sets for int8 and bf16."""
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    instruction_sets = [name for name in INSTRUCTION_SETS if name in flags]
    return " ".join((fields.get("model name", "unknown processor"), *instruction_sets))


def computes_bf16() -> bool:
    """Return whether the processor has instructions for bfloat16 products."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().split())


def sums_int8() -> bool:
    """Return whether the processor accumulates int8 products in 32 bits (VNNI or AMX)."""
    return not {"avx512_vnni", "avx_vnni", "amx_int8"}.isdisjoint(processor().split())


def cpu_limit(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the number of usable CPUs: the CPU affinity, or the container's quota if lower.

    The quota has the format of cgroup version 2: "QUOTA PERIOD" in microseconds, or "max PERIOD".
    """
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup_limit.read_text().split()
    except (OSError, ValueError):
        return cpus
    return cpus if quota == "max" else max(1, min(cpus, int(quota) // int(period)))


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
