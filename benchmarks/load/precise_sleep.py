"""Timer with sub-millisecond resolution for asyncio.

Event loops round timeouts to milliseconds: a task that sleeps for less wakes too early and has to
poll, which takes CPU time from a server on the same machine. Linux's timerfd has nanosecond
resolution on the clock of `time.perf_counter`:
https://man7.org/linux/man-pages/man2/timerfd_create.2.html
"""

import asyncio
import ctypes
import os
import time
from contextlib import suppress
from math import floor

from pipework.closeable import Closeable

TFD_TIMER_ABSTIME = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class PreciseTimer(Closeable):
    """Precise timer of the running event loop, for one waiting task at a time."""

    def __init__(self) -> None:
        """Create the timer, disarmed.

        Raises:
            OSError: the process has reached its limit of open files.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        # Created once: creating them per request would take as long as the system call.
        spec = _TimerSpec()
        self._expiry, self._spec = spec.value, ctypes.byref(spec)
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._file: int | None = _checked(self._libc.timerfd_create(time.CLOCK_MONOTONIC, flags))
        self._loop.add_reader(self._file, self._on_timer)

    async def sleep_until(self, time_s: float) -> None:
        """Sleep until a time of `time.perf_counter`, never shorter."""
        if time.perf_counter() >= time_s:
            return
        self._future = self._loop.create_future()
        seconds = floor(time_s)
        self._expiry.seconds = seconds
        self._expiry.nanoseconds = min(999_999_999, round((time_s - seconds) * 1e9) + 1)
        _checked(self._libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, self._spec, None))
        await self._future

    def close(self) -> None:
        """Close the timer."""
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
        self._file = None

    def _on_timer(self) -> None:
        assert self._file is not None  # the reader is registered only while the timer is open
        with suppress(BlockingIOError):  # the timer was set again in the meantime
            os.read(self._file, 8)
            if self._future is not None and not self._future.done():
                self._future.set_result(None)


def _checked(result: int) -> int:
    """Return the result of a system call, or raise its error."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
