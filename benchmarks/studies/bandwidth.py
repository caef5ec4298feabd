"""How fast memory is read and written: copies of arrays that no cache holds.

After the copy of STREAM (McCalpin 1995, https://www.cs.virginia.edu/stream/), which counts what is
read and what is written, and takes the best of several.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

MIB = 256  # of each of the two arrays: several times a cache of the last level
REPEATS = 8
GIGA = 1e9


def bandwidth_gb_s() -> float:
    """Return the most 10^9 bytes a second that all cores together copy here."""
    threads = len(os.sched_getaffinity(0))
    size = MIB * 2**20 // 8 // threads
    parts = [(np.ones(size), np.zeros(size)) for _ in range(threads)]
    moved = sum(one.nbytes + other.nbytes for one, other in parts)
    with ThreadPoolExecutor(threads) as pool:
        times_s = [_copied_s(pool, parts) for _ in range(REPEATS)]
    return moved / min(times_s) / GIGA


def _copied_s(
    pool: ThreadPoolExecutor, parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> float:
    start_s = time.perf_counter()
    list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), parts))  # without the interpreter
    return time.perf_counter() - start_s
