"""Who goes first where all processors are busy."""

import os
import threading
from contextlib import suppress

NICE = 10  # of an engine's thread; the doors have 0


def step_back() -> None:
    """Let the doors go before the thread that calls this: a refusal should not wait for a batch.

    On Linux a thread has a priority of its own.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
