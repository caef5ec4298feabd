"""Memory that is free goes back to the system, instead of staying with the C library.

Rows of different lengths leave holes of all sizes in the heap of glibc, whose threshold for blocks
of their own rises to 32 MiB by itself (mallopt(3)). A fixed one keeps the holes small.
"""

import ctypes
import gc

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
OWN_BLOCK, KEPT = 4 << 20, 64 << 20  # bytes: a page fault each 4 KiB costs nothing beside the work


def large_blocks_apart() -> None:
    """From now on give large blocks back when they are freed; nothing where there is no glibc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, OWN_BLOCK)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)


def give_back() -> None:
    """Free what only cycles hold, and return free memory to the system."""
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
