"""Requests of a stream are computed at the same time and answered in their order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipework.errors import TooBusyError

MOST = 64  # requests of a stream that are computed at a time; more are read when one is answered
R = TypeVar("R")
A = TypeVar("A")


async def in_order(
    requests: AsyncIterator[R], answer: Callable[[R], Awaitable[A]]
) -> AsyncIterator[A]:
    """Answer each request, the first first.

    An error of `requests` is raised behind the answers to what came before it.
    """
    waiting: asyncio.Queue[asyncio.Future[A] | None] = asyncio.Queue(MOST)
    reader = asyncio.create_task(_read(requests, answer, waiting))
    following: asyncio.Future[A] | None = None
    try:
        while (following := await waiting.get()) is not None:
            yield await following
    finally:
        reader.cancel()
        while following is not None:
            following.cancel()
            following = None if waiting.empty() else waiting.get_nowait()


async def _read(
    requests: AsyncIterator[R],
    answer: Callable[[R], Awaitable[A]],
    waiting: "asyncio.Queue[asyncio.Future[A] | None]",
) -> None:
    try:
        async for request in requests:
            computed = asyncio.ensure_future(answer(request))
            try:
                await waiting.put(computed)
            except asyncio.CancelledError:  # nobody else knows of it
                computed.cancel()
                raise
    except Exception as error:  # noqa: BLE001  (raised again where the answers are taken)
        await waiting.put(_failed(error))
    else:
        await waiting.put(None)


def _failed(error: Exception) -> "asyncio.Future[A]":
    """Return a future that raises; a name for it where the error passed would make a cycle."""
    failed: asyncio.Future[A] = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed


RETRY_AFTER_S = 1


class Places:
    """A number of places, of which each call of a kind takes one until it ends."""

    def __init__(self, most: int, kind: str) -> None:
        """Offer so many places; `kind` names, in the plural, what takes them."""
        self._most = most
        self._kind = kind
        self.taken = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Take a place.

        Raises:
            TooBusyError: all are taken.
        """
        if self.taken >= self._most:
            message = f"{self._most} {self._kind} are open, which is the limit"
            raise TooBusyError(message, RETRY_AFTER_S)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
