import ctypes
from pathlib import Path

import pytest

from pipework.memory import trim_memory

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
