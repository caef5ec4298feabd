"""Callbacks at the end of a tick of the event loop."""

import asyncio
from functools import partial
from math import inf
from types import SimpleNamespace

import pytest

from pipework.serve.http.event_loop import Deadline, EndOfTick, TickShare


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


def test_a_deadline_can_be_moved_removed_and_closed() -> None:
    async def run() -> list[str]:
        loop, events = asyncio.get_running_loop(), list[str]()
        deadline = Deadline(loop, lambda: events.append("passed"))
        deadline.set(0.01)
        deadline.set(0.1)  # later: the timer of 0.01 s fires first
        await asyncio.sleep(0.05)
        events.append("waited")
        await asyncio.sleep(0.2)
        deadline.set(30)
        deadline.set(0.01)  # earlier
        await asyncio.sleep(0.05)
        deadline.set(0.01)
        deadline.set(inf)
        await asyncio.sleep(0.05)
        deadline.set(0.01)
        deadline.close()
        await asyncio.sleep(0.05)
        return events

    assert asyncio.run(run()) == ["waited", "passed", "passed"]


def test_callbacks_without_time_run_in_later_ticks_and_new_ones_first(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, done = [0.0], list[str]()
    clock = SimpleNamespace(perf_counter=lambda: now_s[0])
    monkeypatch.setattr("pipework.serve.http.event_loop.time", clock)

    async def run() -> list[str]:
        share, ticks = TickShare(seconds=1), list[str]()

        def end(name: str) -> None:
            done.append(name)
            now_s[0] += 1  # the time of a tick
            if name == "long":
                share.repeat(partial(end, "long"), "")
            if name == "broken":
                raise CallbackPanicError

        for name in ("long", "broken", "short"):
            share.run(partial(end, name), "")
        for _ in range(4):
            ticks.append(" ".join(done))
            done.clear()
            await asyncio.sleep(0)
        return ticks

    assert asyncio.run(run()) == ["long", "broken long", "short long", "long"]
    assert "CallbackPanicError" in caplog.text


def test_clients_take_turns_when_a_tick_has_no_time() -> None:
    async def run() -> str:
        share, done = TickShare(seconds=0), list[str]()
        for client, name in zip("aaaabbc", "0123456", strict=True):
            share.run(partial(done.append, client + name), client)
        for _ in range(10):
            await asyncio.sleep(0)
        return " ".join(done)

    assert asyncio.run(run()) == "a0 b4 c6 a1 b5 a2 a3"
