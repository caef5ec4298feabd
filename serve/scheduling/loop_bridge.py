"""Passes results of engine threads to coroutines that await them in an event loop.

`asyncio.wrap_future` wakes the loop once per future. An engine completes the futures of a whole
batch in a row, so here they wake the loop once per batch.
"""

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class LoopBridge:
    """Collects results for one event loop and wakes the loop once for many of them.

    Attributes:
        loop: the event loop that awaits the results.
    """

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
            del (
                waiter,
                future,
            )  # avoids a cycle: error -> traceback -> this frame -> future -> error

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
