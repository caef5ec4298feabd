import asyncio
import socket
from types import SimpleNamespace

import pytest

from pipework.errors import DeadlineError, TooBusyError
from pipework.serve.config import LimitSettings
from pipework.serve.http.request_bodies import ByteBudget
from pipework.serve.inference_protocol.stream import (
    CALL_BYTES,
    FAST_CALLS,
    MAX_PENDING,
    SLOW_S,
    MessageLimits,
    ReceiveLimit,
    UnreadResponses,
    in_order,
)

SLOW_CALLS = 8


def unread(_):
    """Add a response to those that a client has not read."""
    return UnreadResponses(ByteBudget(2**20, "have an unread response"), 60).add("ipv4:a:1", 1)


async def numbers(count, read):
    for number in range(count):
        read.append(number)
        yield number


def test_answers_are_in_order_and_computed_concurrently():
    done = []

    async def answer(number):
        await asyncio.sleep(0.05 if number == 0 else 0)
        done.append(number)
        return number

    async def ask():
        return [one async for one in in_order(numbers(5, []), answer, unread)]

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
    assert done == [1, 2, 3, 4, 0]


def test_the_number_of_concurrent_requests_is_limited():
    read = []

    async def ask():
        never = asyncio.Event()
        answers = in_order(numbers(1000, read), lambda _: never.wait(), unread)
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.05)
        first.cancel()

    asyncio.run(ask())
    assert MAX_PENDING <= len(read) <= MAX_PENDING + 2


def test_an_error_of_the_stream_is_raised_after_earlier_answers():
    async def requests():
        yield 1
        yield 2
        message = "broken"
        raise ValueError(message)

    async def answer(number):
        await asyncio.sleep(0.01)
        return number

    async def ask():
        answers = in_order(requests(), answer, unread)
        assert [await anext(answers), await anext(answers)] == [1, 2]
        with pytest.raises(ValueError, match="broken"):
            await anext(answers)

    asyncio.run(ask())


@pytest.mark.parametrize("count", [3, 2 * MAX_PENDING])
def test_a_cancelled_stream_cancels_its_requests(count):
    cancelled, read = [], []

    async def answer(number):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def ask():
        answers = in_order(numbers(count, read), answer, unread)
        first = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait((first,))
        for _ in range(3):
            await asyncio.sleep(0)
        assert sorted(cancelled) == read
        assert len(read) == min(count, MAX_PENDING + 2)

    asyncio.run(ask())


def limit_of(body_s=10.0):
    return ReceiveLimit(SLOW_CALLS + FAST_CALLS, body_s)


def start(limit, read, count):
    return [asyncio.create_task(limit.receive("peer", read)) for _ in range(count)]


def test_messages_are_received_a_few_at_a_time():
    active, most = set(), []

    async def read():
        active.add(task := asyncio.current_task())
        most.append(len(active))
        await asyncio.sleep(0)
        active.remove(task)
        return b"message"

    async def ask():
        limit = limit_of()
        return await asyncio.gather(*start(limit, read, 50))

    assert asyncio.run(ask()) == [b"message"] * 50
    assert max(most) == FAST_CALLS


def test_slow_calls_make_room_and_the_oldest_are_refused():
    async def ask():
        limit = limit_of()
        sent = asyncio.Event()
        slow = start(limit, sent.wait, SLOW_CALLS + 3)
        await asyncio.wait_for(limit.receive("peer", lambda: asyncio.sleep(0, b"fast")), 20)
        done, _ = await asyncio.wait(slow, timeout=10 * SLOW_S)
        assert done == {*slow[:3]}
        for call in done:
            with pytest.raises(TooBusyError, match=f"more than {SLOW_CALLS} messages are"):
                call.result()
        sent.set()
        assert await asyncio.gather(*slow[3:]) == [True] * SLOW_CALLS
        return await asyncio.gather(*start(limit, lambda: asyncio.sleep(0, 1), FAST_CALLS))

    assert asyncio.run(ask()) == [1] * FAST_CALLS


def test_a_message_that_does_not_arrive_is_an_error_after_the_timeout():
    async def ask():
        limit = limit_of(2 * SLOW_S)
        with pytest.raises(DeadlineError, match=f"not received within {2 * SLOW_S:g} s"):
            await limit.receive("peer", asyncio.Event().wait)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(ask())


@pytest.mark.parametrize("wait_s", [0, 2 * SLOW_S])
def test_a_call_that_ends_before_its_message_makes_room(wait_s):
    async def ask():
        limit = limit_of()
        for _ in range(3):
            calls = start(limit, asyncio.Event().wait, 5 * FAST_CALLS)
            await asyncio.sleep(wait_s)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert all(call.cancelled() for call in calls)
        assert not limit._fast._waiting  # noqa: SLF001
        return await asyncio.wait_for(limit.receive("peer", lambda: asyncio.sleep(0, "fast")), 20)

    assert asyncio.run(ask()) == "fast"


def test_connections_receive_in_turn():
    """A connection may have many calls whose messages do not arrive."""
    started = []

    async def never():
        started.append("silent")
        await asyncio.Event().wait()

    async def ask():
        limit = limit_of()
        silent = start(limit, never, 1000)
        await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.wait_for(limit.receive("other", lambda: asyncio.sleep(0)), 20)
        for call in silent:
            call.cancel()
        await asyncio.wait(silent)

    asyncio.run(ask())
    assert len(started) <= 10 * FAST_CALLS


def test_a_call_that_is_cancelled_with_its_turn_passes_the_turn_on():
    async def ask():
        limit = limit_of()
        sent = asyncio.Event()
        first = start(limit, sent.wait, FAST_CALLS)
        waiting = start(limit, asyncio.Event().wait, FAST_CALLS)
        await asyncio.sleep(0)
        sent.set()
        await asyncio.sleep(0)  # `first` continue in this tick and release their slots
        for call in waiting:
            call.cancel()
        await asyncio.gather(*first)
        await asyncio.wait(waiting)
        return await asyncio.wait_for(limit.receive("other", lambda: asyncio.sleep(0, 1)), 20)

    assert asyncio.run(ask()) == 1


def test_streams_and_calls_share_the_memory_of_received_messages():
    limits = LimitSettings()
    found = MessageLimits.of(limits)
    assert found == MessageLimits(streams=16, infer=12, other=4)
    most = found.streams + found.infer + found.other
    assert most * limits.body_bytes == limits.received_bytes


def test_a_response_that_is_read_holds_no_memory(monkeypatch):
    monkeypatch.setattr("pipework.serve.inference_protocol.stream.UNREAD_S", 0.01)
    budget = ByteBudget(2**20, "have an unread response")

    async def ask():
        response = UnreadResponses(budget, 60).add("ipv4:127.0.0.1:1", 100)
        assert budget.used == 0
        await asyncio.sleep(0.05)
        assert budget.used == CALL_BYTES + 100
        response.sent()
        assert budget.used == 0

    asyncio.run(asyncio.wait_for(ask(), 20))


@pytest.mark.parametrize(("size", "timeout_s"), [(CALL_BYTES, 60), (0, 0.02)])
def test_unread_responses_close_their_connection(monkeypatch, size, timeout_s):
    monkeypatch.setattr("pipework.serve.inference_protocol.stream.UNREAD_S", 0.01)
    budget = ByteBudget(2 * CALL_BYTES, "have an unread response")

    async def ask(peer):
        unread = UnreadResponses(budget, timeout_s)
        responses = [unread.add(peer, size) for _ in range(3)]
        assert await asyncio.to_thread(client.recv, 1) == b""
        for response in responses:
            response.sent()

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=20) as client,
        server.accept()[0],
    ):
        asyncio.run(ask(f"ipv4:127.0.0.1:{client.getsockname()[1]}"))
    assert budget.used == 0


def test_dropped_answers_are_no_longer_unread():
    ended = []

    async def answer(number):
        return number

    def add(number):
        return SimpleNamespace(sent=lambda: ended.append(number))

    async def ask():
        answers = in_order(numbers(5, []), answer, add)
        await anext(answers)
        await asyncio.sleep(0.01)
        assert ended == []
        await answers.aclose()
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert ended == [0, 1, 2, 3, 4]
