"""Passes work and results between an event loop and threads.

`asyncio.wrap_future` wakes the loop once per future. An engine completes the futures of a whole
batch in a row, so here they wake the loop once per batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pipework.errors import TooBusyError

T = TypeVar("T")
LARGE_BYTES = 32 * 2**10  # parsing fewer bytes blocks the event loop for at most 10 ms
MAX_WAITING = 64
INLINE_LOGITS = 20_000  # predictions of more logits are made and written outside of the event loop


class LargeWork:
    """Does work that is proportional to the size of a request outside of the event loop, if large.

    Also if the requests of one tick of the event loop are large together. There is one thread for
    all requests: parsers hold the GIL, so that several threads would do no more work, but the event
    loop would have to wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting = self._tick_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-work")

    def check_room(self, size_bytes: int) -> None:
        """Check that a request of this size would not have to wait for many others.

        Raises:
            TooBusyError: MAX_WAITING large requests are waiting for the thread.
        """
        if size_bytes > LARGE_BYTES and self._waiting >= MAX_WAITING:
            message = f"{self._waiting} large requests are waiting to be read"
            raise TooBusyError(message)

    async def run(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Return the result of a function for a request of this size."""
        loop = asyncio.get_running_loop()
        if self._tick_bytes + size_bytes <= LARGE_BYTES:
            if not self._tick_bytes:
                loop.call_soon(self._end_tick)
            self._tick_bytes += size_bytes
            return function()
        self._waiting += 1
        try:
            return await loop.run_in_executor(self._thread, function)
        finally:
            self._waiting -= 1

    def _end_tick(self) -> None:
        self._tick_bytes = 0


LARGE_WORK = LargeWork()


async def run_for_logits(logits: int, function: Callable[[], T]) -> T:
    """Return the result of a function that makes or writes predictions of this many logits."""
    return await asyncio.to_thread(function) if logits > INLINE_LOGITS else function()


class LoopBridge:
    """Collects results for one event loop and wakes the loop once for many of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._wake_scheduled = False

    async def wait(self, future: "Future[T]") -> T:
        """Await a future that a thread completes; cancelling this coroutine cancels the future."""
        waiter: asyncio.Future[T] = self.loop.create_future()
        future.add_done_callback(partial(self._done, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        finally:
            # Avoids a cycle: error -> traceback -> this frame -> future -> error.
            del waiter, future

    def _done(self, waiter: "asyncio.Future[T]", future: "Future[T]") -> None:
        """Wake the loop, from any thread, unless a wake-up is already scheduled."""
        self._ready.append((waiter, future))
        if not self._wake_scheduled:
            self._wake_scheduled = True
            with suppress(RuntimeError):  # the loop is closed, so no coroutine waits
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._wake_scheduled = False  # reset first: later results must schedule a new wake-up
        while self._ready:
            waiter, future = self._ready.popleft()
            if waiter.done():  # it was cancelled
                continue
            if future.cancelled():
                waiter.cancel()
            elif (error := future.exception()) is not None:
                is_stop = isinstance(error, StopIteration)  # not allowed in a coroutine
                waiter.set_exception(RuntimeError(repr(error)) if is_stop else error)
            else:
                waiter.set_result(future.result())
