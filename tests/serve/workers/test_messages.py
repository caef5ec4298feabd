import asyncio
import socket

import pytest

from pipework.errors import (
    DeadlineError,
    InputError,
    NotReadyError,
    PipeError,
    TooBusyError,
    UnknownModelError,
)
from pipework.serve.models.registry import ControlError
from pipework.serve.models.repository_watcher import LoadError
from pipework.serve.workers.messages import (
    Channel,
    Kind,
    error_content,
    frame,
    read_error,
    take_messages,
)


def test_messages_may_arrive_in_pieces():
    sent = [(Kind.SUBMIT, b"a" * 300), (Kind.CANCEL, b""), (Kind.CONTROL, b"{}")]
    stream = b"".join(frame(*message) for message in sent)
    for size in (1, 3, 7, 1000):
        received, found = bytearray(), []
        for start in range(0, len(stream), size):
            received += stream[start : start + size]
            found += take_messages(received)
        assert found == sent
        assert not received


def test_the_rest_stays_in_the_buffer():
    received = bytearray(frame(Kind.CANCEL, b"1") + frame(Kind.CANCEL, b"2"))
    assert take_messages(received, most=1) == [(Kind.CANCEL, b"1")]
    assert take_messages(received) == [(Kind.CANCEL, b"2")]


@pytest.mark.parametrize(
    "error",
    [
        InputError("expected text", "send text"),
        TooBusyError("the queue is full", 7),
        NotReadyError("stopping"),
        DeadlineError("late", "wait longer"),
        UnknownModelError("no such model"),
        LoadError("it is broken", "export it again"),
        ControlError("not allowed", "allow it"),
    ],
)
def test_an_error_stays_the_same(error: PipeError):
    found = read_error(error_content(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


def test_a_bug_stays_a_bug():
    found = read_error(error_content(ValueError("oops")))
    assert not isinstance(found, PipeError)
    assert str(found) == "ValueError('oops')"


def test_messages_of_threads_arrive_in_order_and_the_end_is_reported():
    async def talk() -> tuple[list[bytes], list[str]]:
        loop, (one, other) = asyncio.get_running_loop(), socket.socketpair()
        received: list[bytes] = []
        events: list[str] = []
        full, ended = asyncio.Event(), asyncio.Event()

        def receive(messages):
            received.extend(content for _, content in messages)
            if len(received) == 400:
                full.set()

        def lost():
            events.append("lost")
            if len(events) == 2:  # both ends
                ended.set()

        _, sender = await loop.create_connection(lambda: Channel(receive, lost), sock=one)
        await loop.create_connection(lambda: Channel(receive, lost), sock=other)

        def send(first: int) -> None:
            for number in range(first, first + 200):
                sender.send(Kind.CANCEL, b"%d" % number)

        await asyncio.gather(asyncio.to_thread(send, 0), asyncio.to_thread(send, 200))
        await asyncio.wait_for(full.wait(), 30)
        sender.close()
        await asyncio.wait_for(ended.wait(), 30)
        return received, events

    received, events = asyncio.run(talk())
    numbers = list(map(int, received))
    assert [number for number in numbers if number < 200] == [*range(200)]
    assert [number for number in numbers if number >= 200] == [*range(200, 400)]
    assert events == ["lost", "lost"]
