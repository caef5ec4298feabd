"""An answer is one write, a stream loses nothing, and what is held goes out before the end."""

import asyncio

import pytest

from pipework.serve.http.write_buffer import Corked


class Written:
    """A transport that keeps what happens to it."""

    def __init__(self) -> None:
        self.seen: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.seen.append(data)

    def close(self) -> None:
        self.seen.append("closed")

    def abort(self) -> None:
        self.seen.append("aborted")

    def is_closing(self) -> bool:
        return "closed" in self.seen

    def get_write_buffer_size(self) -> int:
        return 100


@pytest.fixture
def written() -> Written:
    return Written()


def test_head_and_body_are_one_write(written):
    async def answer():
        corked = Corked(written, asyncio.get_running_loop())
        for _ in range(2):
            corked.write(b"head ")
            corked.write(b"body")
        assert written.seen == [b"head body"] * 2
        await asyncio.sleep(0)

    asyncio.run(answer())
    assert written.seen == [b"head body"] * 2


def test_a_write_alone_waits_for_a_turn_of_the_loop_and_no_longer(written):
    async def stream():
        corked = Corked(written, asyncio.get_running_loop())
        for part in (b"a", b"b", b"c"):
            corked.write(part)
        assert written.seen == [b"ab"]
        await asyncio.sleep(0)
        assert written.seen == [b"ab", b"c"]
        corked.write(b"d")
        corked.write(b"")  # the empty body of an answer
        assert written.seen[-1] == b"d"

    asyncio.run(stream())


def test_what_is_held_is_written_before_it_closes(written):
    async def end():
        corked = Corked(written, asyncio.get_running_loop())
        corked.write(b"head")
        assert not corked.is_closing()
        corked.close()
        assert corked.is_closing()

    asyncio.run(end())
    assert written.seen == [b"head", "closed"]


def test_what_is_held_waits_to_be_sent(written):
    async def ask():
        corked = Corked(written, asyncio.get_running_loop())
        corked.write(b"head")
        assert corked.get_write_buffer_size() == 104

    asyncio.run(ask())


def test_nothing_is_written_to_who_has_gone_meanwhile(written):
    async def end():
        corked = Corked(written, asyncio.get_running_loop())
        corked.write(b"head")
        written.close()  # as the loop does at the end of the stream
        await asyncio.sleep(0)

    asyncio.run(end())
    assert written.seen == ["closed"]


def test_what_is_held_is_dropped_where_the_connection_is(written):
    async def end():
        corked = Corked(written, asyncio.get_running_loop())
        corked.write(b"head")
        corked.abort()
        await asyncio.sleep(0)

    asyncio.run(end())
    assert written.seen == ["aborted"]
