"""What threads have computed reaches those who await it in an event loop.

`asyncio.wrap_future` wakes the loop once for each future, from the thread that fulfils it. An
engine fulfils those of a whole batch one after the other: here they wake the loop once.
"""

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Handover:
    """Where the results for one event loop lie until it takes them.

    Attributes:
        loop: see there.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with nothing."""
        self.loop = loop
        self._ready: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._called = False

    async def wait(self, future: "Future[T]") -> T:
        """Await a future that a thread fulfils; cancelling this cancels it."""
        waiter: asyncio.Future[T] = self.loop.create_future()
        future.add_done_callback(partial(self._done, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        finally:
            del waiter, future  # an error knows this frame: with them it would be in a cycle

    def _done(self, waiter: "asyncio.Future[T]", future: "Future[T]") -> None:
        """Call the loop, in whichever thread, unless it is called and has not come yet."""
        self._ready.append((waiter, future))
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                self.loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._called = False  # first: what comes from now on calls again
        while self._ready:
            waiter, future = self._ready.popleft()
            if waiter.done():  # nobody waits any more
                continue
            if future.cancelled():
                waiter.cancel()
            elif (error := future.exception()) is not None:
                stops = isinstance(error, StopIteration)  # which no coroutine may raise
                waiter.set_exception(RuntimeError(repr(error)) if stops else error)
            else:
                waiter.set_result(future.result())
