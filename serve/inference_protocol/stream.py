"""Requests of a stream are computed at the same time and answered in their order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

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
