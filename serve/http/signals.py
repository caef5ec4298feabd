"""Signals that ask a server to stop."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)
AGAIN_S = 0.01

log = logging.getLogger(__name__)


@contextmanager
def handled_by(handler: "signal._HANDLER") -> Iterator[None]:
    """Have SIGTERM and SIGINT handled so, and then as before."""
    before = {sign: signal.signal(sign, handler) for sign in STOPPING}
    try:
        yield
    finally:
        for sign, earlier in before.items():
            signal.signal(sign, earlier)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End the process with 0 at SIGTERM and SIGINT, until others handle these.

    Python drops what is raised in a callback of a weak reference, as each import has one, and in a
    finalizer (https://docs.python.org/3/library/sys.html#sys.unraisablehook); it is raised again.
    """

    def end(sign: int, _: FrameType | None) -> None:
        if sign in STOPPING:
            log.warning("stopped by %s", signal.Signals(sign).name)
        sys.exit(0)

    def again(sign: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler):  # another's by now, perhaps
            handler(sign if handler is end else signal.SIGTERM, frame)

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if what.exc_type is SystemExit and signal.getsignal(signal.SIGTERM) is end:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            hook(what)

    hook, sys.unraisablehook = sys.unraisablehook, dropped
    alarm = signal.signal(signal.SIGALRM, again)
    try:
        with handled_by(end):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = hook
