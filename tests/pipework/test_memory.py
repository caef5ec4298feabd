import ctypes
from pathlib import Path

import pytest

import pipework.machine
from pipework.machine import MAX_PAUSE, STEP_BYTES, MemoryTrimmer, trim_memory

BLOCKS, SIZE = (
    30_000,
    1_000,
)  # small blocks, which the C library does not return when they are freed


def resident_kb() -> int:
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_freed_memory_is_returned_to_the_operating_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(SIZE) for _ in range(BLOCKS)]
    last = libc.malloc(SIZE)  # a block after them keeps the heap from shrinking by itself
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(ctypes.c_void_p(block))
    before_kb = resident_kb()
    trim_memory()
    assert resident_kb() < before_kb - BLOCKS * SIZE / 1024 / 2
    libc.free(ctypes.c_void_p(last))


class Process:
    """A process whose memory the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used = self.freed = 0
        self.trims = 0
        monkeypatch.setattr(pipework.machine, "resident_bytes", lambda: self.used + self.freed)
        monkeypatch.setattr(pipework.machine, "trim_memory", self.trim)

    def trim(self) -> None:
        self.freed = 0
        self.trims += 1

    def check(self, trimmer: MemoryTrimmer, times: int = 1) -> int:
        """Check this often, trim if it is due, and return how often it was."""
        before = self.trims
        for _ in range(times):
            if trimmer.is_due():
                trimmer.trim()
        return self.trims - before


def test_memory_is_returned_after_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    process.used = 100 * STEP_BYTES
    trimmer = MemoryTrimmer()
    process.freed = STEP_BYTES
    assert process.check(trimmer, 100) == 0
    process.used += 10 * STEP_BYTES
    assert process.check(trimmer) == 1  # but it is in use
    process.used, process.freed = 100 * STEP_BYTES, 10 * STEP_BYTES
    assert process.check(trimmer, 4) == 1
    assert process.freed == 0


def test_memory_in_use_is_seldom_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    trimmer = MemoryTrimmer()
    process.used = 10 * STEP_BYTES
    process.check(trimmer, 200)
    assert process.check(trimmer, 10 * MAX_PAUSE) == 10
    process.used += 2 * STEP_BYTES  # a new peak
    assert process.check(trimmer, 1) == 1
