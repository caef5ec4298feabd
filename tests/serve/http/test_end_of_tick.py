"""Callbacks at the end of a tick of the event loop."""

import asyncio

import pytest

from pipework.serve.http.fast_path import EndOfTick


class CallbackPanicError(BaseException):
    """Like the panic of a Rust library: not an Exception."""


def test_callbacks_run_together_even_if_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    end_of_tick = EndOfTick()

    async def step(name: str) -> None:
        end_of_tick.add(lambda: end(name))
        done.append(f"{name} worked")

    def end(name: str) -> None:
        done.append(f"{name} ended")
        if name == "b":
            end_of_tick.add(lambda: end("d"))
            raise CallbackPanicError

    async def steps() -> None:
        await asyncio.gather(*map(step, "abc"))
        await asyncio.sleep(0)

    asyncio.run(steps())
    worked, ended = [f"{name} worked" for name in "abc"], [f"{name} ended" for name in "abcd"]
    assert done == worked + ended
    assert "CallbackPanicError" in caplog.text
