"""What is left to the end of a turn of the event loop."""

import asyncio

import pytest

from pipework.serve.http.fast_path import Turn


class PanicError(BaseException):
    """As what a library in Rust panics with, no Exception."""


def test_what_a_turn_leaves_is_done_together_whatever_becomes_of_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    turn = Turn()

    async def step(name: str) -> None:
        turn.at_end(lambda: end(name))
        done.append(f"{name} worked")

    def end(name: str) -> None:
        done.append(f"{name} left")
        if name == "b":
            turn.at_end(lambda: end("d"))
            raise PanicError

    async def steps() -> None:
        await asyncio.gather(*map(step, "abc"))
        await asyncio.sleep(0)

    asyncio.run(steps())
    worked, left = [f"{one} worked" for one in "abc"], [f"{one} left" for one in "abcd"]
    assert done == worked + left
    assert "PanicError" in caplog.text
