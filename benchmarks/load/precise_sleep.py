"""Sleeping to a time and not less.

Event loops count milliseconds: what sleeps for parts of one is woken too early, and again and again
until its time has come, which takes processor time from a server beside it. Linux's timerfd counts
nanoseconds, on the clock of `time.perf_counter`:
https://man7.org/linux/man-pages/man2/timerfd_create.2.html
"""

import asyncio
import ctypes
import os
import time
from contextlib import suppress
from math import floor

from pipework.closeable import Closing

ABSOLUTE = 1  # TFD_TIMER_ABSTIME
CREATE, SET = "timerfd_create", "timerfd_settime"


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class Alarm(Closing):
    """One timer of the running loop, for one who waits; where there is no timerfd, `until`."""

    def __init__(self) -> None:
        """Open it, set to no time.

        Raises:
            OSError: this process may open no more files.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._file: int | None = None
        # Made once: for each request they would take as long as the call itself.
        setting = _Setting()
        self._at, self._setting = setting.value, ctypes.byref(setting)
        if hasattr(libc, CREATE):
            self._set = libc[SET]
            flags = os.O_NONBLOCK | os.O_CLOEXEC
            self._file = _checked(libc[CREATE](time.CLOCK_MONOTONIC, flags))
            self._loop.add_reader(self._file, self._ring)

    async def until(self, time_s: float) -> None:
        """Sleep to a time of `time.perf_counter`, and never less."""
        if time.perf_counter() >= time_s:
            return
        if self._file is None:
            await until(time_s)
            return
        self._waiting = self._loop.create_future()
        self._at.seconds = seconds = floor(time_s)
        self._at.nanoseconds = min(999_999_999, round((time_s - seconds) * 1e9) + 1)
        _checked(self._set(self._file, ABSOLUTE, self._setting, None))
        await self._waiting

    def close(self) -> None:
        """Give it up."""
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
        self._file = None

    def _ring(self) -> None:
        assert self._file is not None  # it is read while it is open
        with suppress(BlockingIOError):  # it was set anew meanwhile
            os.read(self._file, 8)
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)


def _checked(answer: int) -> int:
    """Return what the system answers, unless it is an error."""
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


async def until(time_s: float) -> None:
    """Sleep to a time of `time.perf_counter`, and never less, for seconds rather than for less."""
    while (wait_s := time_s - time.perf_counter()) > 0:  # noqa: ASYNC110  (no event, a time)
        await asyncio.sleep(wait_s)
