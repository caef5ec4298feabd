"""The time between SIGTERM and the end of the process."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.errors import NotReadyError
from pipework.serve.http.errors import failure

log = logging.getLogger(__name__)
LAST = "the server stopped before the request was answered"
RESERVE_S = 2  # of the grace: to refuse what is not answered by then, and to free the engines


def drain_s(grace_s: int) -> int:
    """Return for how long requests may still be answered."""
    return max(1, grace_s - RESERVE_S)


class Grace:
    """Ends the process with 0 when the grace is over, whatever still holds it.

    An engine that hangs, a thread or a connection cannot be ended from outside, and who sent
    SIGTERM will not wait longer. Leaving the context in time calls it off.
    """

    def __init__(self, stopping: threading.Event, seconds: float) -> None:
        """Count from the moment that `stopping` is set."""
        self._stopping = stopping
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="grace", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Call it off."""
        self._ended.set()
        self._stopping.set()

    def _watch(self) -> None:
        self._stopping.wait()
        if not self._ended.wait(self._seconds):
            log.error("the grace of %g s is over, and not all was answered", self._seconds)
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(0)


class LastAnswers:
    """ASGI middleware: a request that is cancelled, as uvicorn does at the end, is told why."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer it if it is cancelled before it was answered."""
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            if begun:
                raise
            await failure(NotReadyError(LAST))(scope, receive, send)


STOPPING = (signal.SIGTERM, signal.SIGINT)
AGAIN_S = 0.01


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
