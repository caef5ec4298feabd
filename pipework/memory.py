"""Memory that an engine had goes back to the system."""

import ctypes
import gc


def return_free_memory() -> None:
    """Have the C library return what is free; where it has no such call, do nothing.

    What an engine had lies in the pools of the threads that used it, and would stay there.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def give_back() -> None:
    """Free what only cycles hold, and return free memory to the system.

    After training it is the model, the gradients and the optimizer: without this, what comes later
    counts on top of them.
    """
    gc.collect()
    trim()


def trim() -> None:
    """Return free memory to the system where glibc keeps it; see malloc_trim(3).

    Batches of many lengths leave holes between what stays, and the next long batch does not fit
    into them. Takes 20 to 60 ms with a GB in use.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
