"""Callbacks of the event loop: at the end of a tick, in turn, and at a deadline. Intervals."""

import logging
import time
from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections.abc import Callable
from math import inf

from pipework.serve.request.turns import ClientTurns

log = logging.getLogger(__name__)


class EndOfTick:
    """Runs callbacks at the end of the current tick of the event loop, in order."""

    # All requests of a batch finish in one tick. Their responses are sent together at its end,
    # because this wakes a client process less often than separate sends.

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """Run a callback at the end of this tick, even if others fail.

        A callback added by another callback runs at the end of the next tick.
        """
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _call(callback)


class TickShare:
    """Limits the time of callbacks in each tick of the event loop; clients then take turns.

    New callbacks come before repeated ones, so that a short request does not wait for the rest of
    long ones. At least one of both runs in each tick.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end_s = inf  # of the time in this tick
        self._new = ClientTurns[Callable[[], None]]()
        self._repeated = ClientTurns[Callable[[], None]]()

    def has_time(self) -> bool:
        """Return whether this tick has time left. The time starts with the first call."""
        now_s = time.perf_counter()
        if self._end_s == inf:
            self._end_s = now_s + self._seconds
            get_running_loop().call_soon(self._start_tick)
        return now_s < self._end_s

    def run(self, callback: Callable[[], None], client: str) -> None:
        """Run a callback in this tick if there is time; else in one of the next."""
        if self.has_time():
            callback()
        else:
            self._new.add(client, callback)

    def repeat(self, callback: Callable[[], None], client: str) -> None:
        """Run a callback in one of the next ticks."""
        self.has_time()
        self._repeated.add(client, callback)

    def _start_tick(self) -> None:
        self._end_s = inf
        if not (self._new or self._repeated):
            return
        self.has_time()  # schedules the next tick
        for waiting in (self._new, self._repeated):
            for _ in range(len(waiting)):
                _call(waiting.take())
                if not self.has_time():
                    break


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except BaseException:  # the other callbacks must still run
        log.exception("a callback of the event loop failed")


class Deadline:
    """Calls a function when a deadline has passed. Moving the deadline is cheap."""

    # A running timer is not restarted if it fires before the deadline, because each request moves
    # the deadline of its connection several times.

    def __init__(self, loop: AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._deadline_s = inf
        self._timer: TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Set the deadline to this time from now; inf for none."""
        self._deadline_s = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline_s:
            self._timer.cancel()
            self._timer = None
        self._start()

    def close(self) -> None:
        """Stop the timer and drop the function, which may refer to the owner of this object."""
        if self._timer is not None:
            self._timer.cancel()
        del self._passed, self._timer

    def _start(self) -> None:
        if self._timer is None and self._deadline_s != inf:
            self._timer = self._loop.call_at(self._deadline_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._loop.time() < self._deadline_s:
            self._start()
        else:
            self._passed()


class Throttle:
    """Is due at once, and then at most once per interval."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last_s = -inf

    def is_due(self) -> bool:
        """Return whether the interval has passed since the last True."""
        now_s = time.monotonic()
        due = now_s - self._last_s >= self._seconds
        if due:
            self._last_s = now_s
        return due
