"""Signals that ask a server to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def handled_by(handler: "signal._HANDLER") -> Iterator[None]:
    """Have SIGTERM and SIGINT handled so, and then as before."""
    before = {sign: signal.signal(sign, handler) for sign in STOPPING}
    try:
        yield
    finally:
        for sign, earlier in before.items():
            signal.signal(sign, earlier)
