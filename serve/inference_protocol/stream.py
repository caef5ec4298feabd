"""Streams: requests are computed concurrently and answered in order.

Limits for open streams, for the messages of other calls that are being received, and for the
responses that clients do not read.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias, TypeVar
from urllib.parse import unquote

from pipework.errors import DeadlineError, PipeError, TooBusyError
from pipework.serve.config import LimitSettings
from pipework.serve.http.request_bodies import ByteBudget, HeldBytes
from pipework.serve.request.turns import ClientTurns

MAX_PENDING = 64  # requests of a stream that are computed concurrently
FAST_CALLS = 2
SLOW_S = 0.025  # an arrived message is read in less
R = TypeVar("R")
A = TypeVar("A")
UNREAD_S = 1.0  # clients read a response in less
CALL_BYTES = 16 * 2**10  # memory of a call in gRPC, without its messages


_Computed: TypeAlias = "asyncio.Future[tuple[A, UnreadResponse]]"
_Pending: TypeAlias = "asyncio.Queue[_Computed[A] | None]"
OTHER_SHARE = 8  # part of the messages that is for methods other than inference


async def in_order(
    requests: AsyncIterator[R],
    answer: Callable[[R], Awaitable[A]],
    add_unread: "Callable[[A], UnreadResponse]",
) -> AsyncIterator[A]:
    """Yield the answers in the order of the requests.

    An error of `requests` is raised after the answers to the requests before it. An answer counts
    as unread from its computation until the caller requests the next one.
    """

    async def compute(request: R) -> tuple[A, UnreadResponse]:
        computed = await answer(request)
        return computed, add_unread(computed)

    pending: _Pending[A] = asyncio.Queue(MAX_PENDING)
    reader = asyncio.create_task(_read(requests, compute, pending))
    following: _Computed[A] | None = None
    try:
        while (following := await pending.get()) is not None:
            computed, unread = await following
            yield computed
            unread.sent()
    finally:
        reader.cancel()
        while following is not None:
            following.cancel()
            following.add_done_callback(_drop)
            following = None if pending.empty() else pending.get_nowait()


def _drop(computed: "_Computed[A]") -> None:
    if not computed.cancelled() and computed.exception() is None:
        computed.result()[1].sent()


async def _read(
    requests: AsyncIterator[R],
    compute: "Callable[[R], Awaitable[tuple[A, UnreadResponse]]]",
    pending: "_Pending[A]",
) -> None:
    try:
        async for request in requests:
            computed = asyncio.ensure_future(compute(request))
            try:
                await pending.put(computed)
            except asyncio.CancelledError:  # it is not in the queue, so cancel it here
                computed.cancel()
                raise
    except Exception as error:  # noqa: BLE001  (raised again by `in_order`)
        await pending.put(_failed(error))
    else:
        await pending.put(None)


def _failed(error: Exception) -> "_Computed[A]":
    """Return a future that raises the error."""
    # Not inline: the traceback holds the locals of `_read`, and a local future would be a cycle.
    failed: _Computed[A] = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed


class UnreadResponses:
    """Limits the responses that clients do not read, in memory and time, as over HTTP.

    gRPC keeps a response until the client has read it, and cannot end such a call. So the
    connection of the client is closed.
    """

    def __init__(self, budget: ByteBudget, timeout_s: float) -> None:
        """Hold unread responses in `budget`, for `timeout_s` seconds each."""
        self._budget = budget
        self._timeout_s = timeout_s
        self._closing: set[str] = set()

    def add(self, peer: str, size: int) -> "UnreadResponse":
        """Add a response of this size in bytes to a client connection."""
        close = partial(self._close, peer)
        return UnreadResponse(HeldBytes(self._budget), size + CALL_BYTES, self._timeout_s, close)

    def _close(self, peer: str) -> None:
        if peer not in self._closing:
            self._closing.add(peer)
            # In a thread: there may be thousands of open files.
            closed = asyncio.get_running_loop().run_in_executor(None, close_connection, peer)
            closed.add_done_callback(lambda _: self._closing.discard(peer))


class UnreadResponse:
    """A response until `sent` is called. It counts if that takes longer than UNREAD_S."""

    def __init__(
        self, held: HeldBytes, size: int, timeout_s: float, close: Callable[[], None]
    ) -> None:
        self._held = held
        self._size = size
        self._timeout_s = timeout_s
        self._close = close
        self._timer = asyncio.get_running_loop().call_later(UNREAD_S, self._count)

    def sent(self, _: object = None) -> None:
        """End: the client has read the response, or has disconnected."""
        self._timer.cancel()
        self._held.resize(0)

    def _count(self) -> None:
        try:
            self._held.resize(self._size)
        except TooBusyError:
            self._close()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s - UNREAD_S, self._close)


def peer_address(peer: str) -> tuple[str, str]:
    """Return host and port of an address as grpc shows it."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]"), port


def close_connection(peer: str) -> None:
    """Close the connections of a client; `peer` is its address as grpc shows it."""
    host, port = peer_address(peer)
    address = host, int(port)
    for file in Path("/dev/fd").iterdir():
        if not file.is_socket():
            continue
        # A listening socket has no peer, and the peer of a Unix socket has no port.
        with (
            suppress(OSError, ValueError),
            socket.socket(fileno=os.dup(int(file.name))) as opened,
        ):
            peer_host, peer_port, *_ = opened.getpeername()
            # gRPC accepts IPv4 connections on IPv6 sockets, but shows IPv4 addresses.
            if (peer_host.removeprefix("::ffff:"), peer_port) == address:
                opened.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, kw_only=True)
class MessageLimits:
    """How many messages may be received at a time; each may have `body_bytes` in memory.

    Attributes:
        streams: streams, half of all. A stream may wait for a message, or for the rest of one,
            without a timeout, and gRPC does not tell which.
        infer: unary calls for inference.
        other: other calls, so that health checks do not wait for inference.
    """

    streams: int
    infer: int
    other: int

    @classmethod
    def of(cls, limits: LimitSettings) -> Self:
        """Return the limits for `received_bytes`."""
        messages = limits.received_bytes // limits.body_bytes
        streams, other = max(1, messages // 2), messages // OTHER_SHARE
        return cls(streams=streams, infer=messages - streams - other, other=other)


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
            raise TooBusyError(message)
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1


class ReceiveLimit:
    """Limits the messages of unary calls that are being received, and the time for each.

    gRPC keeps up to the largest size of a message in memory for a call that receives, and does not
    tell how much. A call that has not started to receive has at most the 64 KiB of HTTP/2's flow
    control. So FAST_CALLS calls receive at a time, which takes a moment if the message has arrived.
    A call whose message has not arrived is slow and makes room for others. There is a limit for
    slow calls too: if it is exceeded, the oldest is refused.

    Waiting connections take turns, so that one with many calls without a message, which take SLOW_S
    each, does not delay the calls of others.
    """

    def __init__(self, most: int, body_s: float) -> None:
        """Receive at most `most` messages at a time, but at least one more than FAST_CALLS."""
        self._fast = _SharedSlots(FAST_CALLS)
        self._slow: dict[asyncio.Timeout, None] = {}
        self._refused = set[asyncio.Timeout]()
        self._most_slow = max(1, most - FAST_CALLS)
        self._body_s = body_s

    async def receive(self, peer: str, read: Callable[[], Awaitable[R]]) -> R:
        """Return the result of `read`, which receives a message from a client connection.

        Raises:
            TooBusyError: the call was slow, and there are too many slow calls.
            DeadlineError: the message was not received in time.
        """
        await self._fast.acquire(peer)
        limit = asyncio.timeout(self._body_s)
        slow = asyncio.get_running_loop().call_later(SLOW_S, self._slow_down, limit)
        try:
            async with limit:
                return await read()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._error(limit) from error
        finally:
            slow.cancel()
            if limit in self._refused:
                self._refused.remove(limit)
            elif limit in self._slow:
                del self._slow[limit]
            else:
                self._fast.release()

    def _slow_down(self, limit: asyncio.Timeout) -> None:
        self._fast.release()
        self._slow[limit] = None
        if len(self._slow) > self._most_slow:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            now = asyncio.get_running_loop().time()
            if (oldest.when() or 0) > now:  # else it ends by itself
                self._refused.add(oldest)
                oldest.reschedule(now)

    def _error(self, limit: asyncio.Timeout) -> PipeError:
        if limit in self._refused:
            message = f"more than {self._most_slow} messages are being received"
            return TooBusyError(message)
        return DeadlineError(f"the message was not received within {self._body_s:g} s")


class _SharedSlots:
    """Slots for concurrent calls, which waiting connections get in turn."""

    def __init__(self, slots: int) -> None:
        self._free = slots  # only if no call waits
        self._waiting = ClientTurns[asyncio.Future[None]]()

    async def acquire(self, peer: str) -> None:
        """Wait for a slot."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(peer, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(peer, turn)
            else:  # it got the slot in the same tick
                self.release()
            raise

    def release(self) -> None:
        """Give a slot to the first call of the connection that has waited for longest."""
        while self._waiting:
            turn = self._waiting.take()
            if not turn.done():  # else it was cancelled in this tick
                turn.set_result(None)
                return
        self._free += 1
