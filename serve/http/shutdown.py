"""Shutdown: from SIGTERM to the exit of the process."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pipework.errors import PipeError

log = logging.getLogger(__name__)
RESERVE_S = 2  # part of the grace period for the last error responses and for closing the engines
STOPPING = (signal.SIGTERM, signal.SIGINT)
RERAISE_S = 0.01


def drain_s(grace_s: int) -> int:
    """Return the seconds that remain for requests in flight."""
    return max(1, grace_s - RESERVE_S)


@contextmanager
def grace_period(stopping: threading.Event, seconds: float) -> Iterator[None]:
    """Exit the process with code 0 when `stopping` has been set for this time.

    A hanging engine, thread or connection cannot be stopped from outside, and the sender of SIGTERM
    does not wait longer. Leaving the context earlier cancels this.
    """
    ended = threading.Event()
    arguments = (stopping, ended, seconds)
    threading.Thread(target=_exit_late, args=arguments, name="grace", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        stopping.set()


def _exit_late(stopping: threading.Event, ended: threading.Event, seconds: float) -> None:
    stopping.wait()
    if not ended.wait(seconds):
        log.error("the grace period of %g s is over: exiting with unanswered requests", seconds)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, PipeError):  # it cannot be written
                stream.flush()
        os._exit(0)


def stop_on_hangup() -> None:
    """Handle SIGHUP as SIGTERM, unless it is ignored (nohup)."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


@contextmanager
def signal_handlers(handler: "signal._HANDLER") -> Iterator[None]:
    """Set the handler of SIGTERM and SIGINT, and restore the previous handlers afterwards."""
    previous = {number: signal.signal(number, handler) for number in STOPPING}
    try:
        yield
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Exit the process with code 0 at SIGTERM and SIGINT, until other handlers are set."""
    # Python drops exceptions raised in a callback of a weak reference (each import has such a
    # callback) and in a finalizer: https://docs.python.org/3/library/sys.html#sys.unraisablehook.
    # If that happens to SystemExit, a timer raises it again.

    def end(number: int, _: FrameType | None) -> None:
        if number in STOPPING:
            log.warning("stopped by %s", signal.Signals(number).name)
        sys.exit(0)

    def retry(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler):  # may be another handler by now
            handler(number if handler is end else signal.SIGTERM, frame)

    def on_unraisable(args: "sys.UnraisableHookArgs") -> None:
        if args.exc_type is SystemExit and signal.getsignal(signal.SIGTERM) is end:
            signal.setitimer(signal.ITIMER_REAL, RERAISE_S)
        else:
            hook(args)

    hook, sys.unraisablehook = sys.unraisablehook, on_unraisable
    alarm = signal.signal(signal.SIGALRM, retry)
    try:
        with signal_handlers(end):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        sys.unraisablehook = hook
