"""Streams: requests are computed concurrently and answered in order. Limits for open streams."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipework.errors import TooBusyError

MAX_PENDING = 64  # requests of a stream that are computed concurrently
R = TypeVar("R")
A = TypeVar("A")


async def in_order(
    requests: AsyncIterator[R], answer: Callable[[R], Awaitable[A]]
) -> AsyncIterator[A]:
    """Yield the answers in the order of the requests.

    An error of `requests` is raised after the answers to the requests before it.
    """
    pending: asyncio.Queue[asyncio.Future[A] | None] = asyncio.Queue(MAX_PENDING)
    reader = asyncio.create_task(_read(requests, answer, pending))
    following: asyncio.Future[A] | None = None
    try:
        while (following := await pending.get()) is not None:
            yield await following
    finally:
        reader.cancel()
        while following is not None:
            following.cancel()
            following = None if pending.empty() else pending.get_nowait()


async def _read(
    requests: AsyncIterator[R],
    answer: Callable[[R], Awaitable[A]],
    pending: "asyncio.Queue[asyncio.Future[A] | None]",
) -> None:
    try:
        async for request in requests:
            computed = asyncio.ensure_future(answer(request))
            try:
                await pending.put(computed)
            except asyncio.CancelledError:  # it is not in the queue, so cancel it here
                computed.cancel()
                raise
    except Exception as error:  # noqa: BLE001  (raised again by `in_order`)
        await pending.put(_failed(error))
    else:
        await pending.put(None)


def _failed(error: Exception) -> "asyncio.Future[A]":
    """Return a future that raises the error."""
    # Not inline: the traceback holds the locals of `_read`, and a local future would be a cycle.
    failed: asyncio.Future[A] = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed


RETRY_AFTER_S = 1


class ConcurrencyLimit:
    """A limit for the number of concurrent calls of a kind."""

    def __init__(self, most: int, kind: str) -> None:
        """Allow at most `most` calls; `kind` is their name in the plural."""
        self._most = most
        self._kind = kind
        self.active = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count a call as active inside a `with` block.

        Raises:
            TooBusyError: the limit is reached.
        """
        if self.active >= self._most:
            message = f"{self._most} {self._kind} are open, which is the limit"
            raise TooBusyError(message, RETRY_AFTER_S)
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
