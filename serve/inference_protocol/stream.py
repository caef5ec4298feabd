"""Streams: requests are computed concurrently and answered in order.

Limits for open streams, and for the messages of other calls that are being received.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from pipework.errors import DeadlineError, PipeError, TooBusyError
from pipework.serve.config import LimitSettings

MAX_PENDING = 64  # requests of a stream that are computed concurrently
FAST_CALLS = 2
SLOW_S = 0.025  # an arrived message is read in less
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
OTHER_SHARE = 8  # part of the messages that is for methods other than inference


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
            raise TooBusyError(message, RETRY_AFTER_S)
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
        self._slow: dict[_Receiving, None] = {}
        self._most_slow = max(1, most - FAST_CALLS)
        self._body_s = body_s

    async def receive(self, peer: str, read: Callable[[], Awaitable[R]]) -> R:
        """Return the result of `read`, which receives a message from a client connection.

        Raises:
            TooBusyError: the call was slow, and there are too many slow calls.
            DeadlineError: the message was not received in time.
        """
        await self._fast.acquire(peer)
        receiving = _Receiving(self._slow_down)
        try:
            return await read()
        except asyncio.CancelledError:
            receiving.raise_error()
            raise
        finally:
            receiving.timer.cancel()
            if receiving.slow:
                self._slow.pop(receiving, None)
            else:
                self._fast.release()

    def _slow_down(self, receiving: "_Receiving") -> None:
        self._fast.release()
        self._slow[receiving] = None
        receiving.slow = True
        late = DeadlineError(f"the message was not received within {self._body_s:g} s")
        loop = asyncio.get_running_loop()
        receiving.timer = loop.call_later(self._body_s - SLOW_S, receiving.end, late)
        if len(self._slow) > self._most_slow:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            message = f"more than {self._most_slow} messages are being received"
            oldest.end(TooBusyError(message, RETRY_AFTER_S))


class _SharedSlots:
    """Slots for concurrent calls, which waiting connections get in turn."""

    def __init__(self, slots: int) -> None:
        self._free = slots  # only if no call waits
        self._waiting: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()

    async def acquire(self, peer: str) -> None:
        """Wait for a slot."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._remove(peer, turn)
            else:  # it got the slot in the same tick
                self.release()
            raise

    def release(self) -> None:
        """Give a slot to the first call of the connection that has waited for longest."""
        while self._waiting:
            peer = next(iter(self._waiting))
            turn = next(iter(self._waiting[peer]))
            self._waiting.move_to_end(peer)
            self._remove(peer, turn)
            if not turn.done():  # else it was cancelled in this tick
                turn.set_result(None)
                return
        self._free += 1

    def _remove(self, peer: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(peer, {})
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(peer, None)


class _Receiving:
    """A message that is being received by the current task.

    Attributes:
        slow: whether it takes long.
        timer: makes it slow, then ends it.
    """

    def __init__(self, slow_down: "Callable[[_Receiving], None]") -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._error: PipeError | None = None
        self.slow = False
        self.timer = asyncio.get_running_loop().call_later(SLOW_S, slow_down, self)

    def end(self, error: PipeError) -> None:
        """Cancel the task, which raises an error."""
        self._error = error
        self._task.cancel()

    def raise_error(self) -> None:
        """Raise the error if `end` has cancelled the task, and nothing else has."""
        if self._error is not None and self._task.uncancel() == 0:
            error, self._error = self._error, None
            raise error from None
