"""A response is one write, a stream is complete, and the buffer is flushed on close."""

import asyncio

import pytest

from pipework.serve.http.write_buffer import WriteBuffer


class FakeTransport:
    """A transport that records its calls."""

    def __init__(self) -> None:
        self.calls: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("closed")

    def abort(self) -> None:
        self.calls.append("aborted")

    def is_closing(self) -> bool:
        return "closed" in self.calls

    def get_write_buffer_size(self) -> int:
        return 100


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


def test_head_and_body_are_one_write(transport):
    async def answer():
        buffer = WriteBuffer(transport, asyncio.get_running_loop())
        for _ in range(2):
            buffer.write(b"head ")
            buffer.write(b"body")
        assert transport.calls == [b"head body"] * 2
        await asyncio.sleep(0)

    asyncio.run(answer())
    assert transport.calls == [b"head body"] * 2


def test_a_single_write_is_sent_in_the_next_tick(transport):
    async def stream():
        buffer = WriteBuffer(transport, asyncio.get_running_loop())
        for part in (b"a", b"b", b"c"):
            buffer.write(part)
        assert transport.calls == [b"ab"]
        await asyncio.sleep(0)
        assert transport.calls == [b"ab", b"c"]
        buffer.write(b"d")
        buffer.write(b"")  # an empty response body
        assert transport.calls[-1] == b"d"

    asyncio.run(stream())


def test_the_buffer_is_written_before_the_transport_closes(transport):
    async def end():
        buffer = WriteBuffer(transport, asyncio.get_running_loop())
        buffer.write(b"head")
        assert not buffer.is_closing()
        buffer.close()
        assert buffer.is_closing()

    asyncio.run(end())
    assert transport.calls == [b"head", "closed"]


def test_the_buffer_counts_as_unsent(transport):
    async def check():
        buffer = WriteBuffer(transport, asyncio.get_running_loop())
        buffer.write(b"head")
        assert buffer.get_write_buffer_size() == 104

    asyncio.run(check())


def test_nothing_is_written_after_the_client_has_closed(transport):
    async def end():
        buffer = WriteBuffer(transport, asyncio.get_running_loop())
        buffer.write(b"head")
        transport.close()  # as the event loop does at the end of the stream
        await asyncio.sleep(0)

    asyncio.run(end())
    assert transport.calls == ["closed"]


def test_the_buffer_is_dropped_on_abort(transport):
    async def end():
        buffer = WriteBuffer(transport, asyncio.get_running_loop())
        buffer.write(b"head")
        buffer.abort()
        await asyncio.sleep(0)

    asyncio.run(end())
    assert transport.calls == ["aborted"]
