"""Memory that an engine had goes back to the system."""

import ctypes


def return_free_memory() -> None:
    """Have the C library return what is free; where it has no such call, do nothing.

    What an engine had lies in the pools of the threads that used it, and would stay there.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
