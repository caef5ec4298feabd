"""Return freed memory to the operating system, and recognise failed allocations."""

import ctypes
import gc
import os
from pathlib import Path

STATM = Path("/proc/self/statm")
STEP_BYTES = 16 * 2**20
MAX_PAUSE = 32
# Parts of messages: of torch's allocator of CPU memory, of the operating system, and of CUDA.
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python, a library or the system is that of an allocation."""
    return isinstance(error, MemoryError) or any(part in str(error) for part in NO_MEMORY)


def collect_and_trim() -> None:
    """Collect reference cycles, then return free memory to the operating system.

    Called after training: cycles keep the model, the gradients and the optimizer alive, and their
    memory would add to that of the next stage.
    """
    gc.collect()
    trim_memory()


def trim_memory() -> None:
    """Call `malloc_trim(3)` of glibc; do nothing with another C library.

    Takes 20 to 60 ms with a GB in use.
    """
    # Memory of a closed engine stays in the pools of the threads that used it. Batches of varying
    # length leave gaps in the heap that the next long batch does not fit into.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """Return the memory of this process; 0 on a system without /proc."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class MemoryTrimmer:
    """Returns freed memory while the memory of a process changes, and seldom if it does not.

    The memory of many small blocks stays with the process after a peak, and with the arenas of the
    threads that used them.
    """

    def __init__(self) -> None:
        self._lowest = self._trimmed = resident_bytes()
        self._pause, self._checks = 1, 0

    def is_due(self) -> bool:
        """Return whether memory can be returned. Call this at regular intervals."""
        resident = resident_bytes()
        self._lowest = min(self._lowest, resident)
        self._checks += 1
        if resident > self._trimmed + STEP_BYTES:
            self._pause = 1
        return resident > self._lowest + STEP_BYTES and self._checks >= self._pause

    def trim(self) -> None:
        """Return freed memory. If there was little, pause for up to MAX_PAUSE checks."""
        before = resident_bytes()
        trim_memory()
        self._trimmed = resident_bytes()
        freed = before - self._trimmed
        self._pause = 1 if freed > STEP_BYTES // 4 else min(2 * self._pause, MAX_PAUSE)
        self._checks = 0
