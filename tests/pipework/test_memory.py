import ctypes
from pathlib import Path

import pytest

from pipework.memory import return_free_memory

BLOCKS, SIZE = 30_000, 1_000  # small ones, which the C library keeps when they are freed


def resident_kb() -> int:
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_what_was_freed_goes_back_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(SIZE) for _ in range(BLOCKS)]
    last = libc.malloc(SIZE)  # what lies behind them keeps the heap from shrinking by itself
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(ctypes.c_void_p(block))
    before_kb = resident_kb()
    return_free_memory()
    assert resident_kb() < before_kb - BLOCKS * SIZE / 1024 / 2
    libc.free(ctypes.c_void_p(last))
