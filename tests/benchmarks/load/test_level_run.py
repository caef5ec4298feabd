"""The measured time of a level, and when it ends."""

import asyncio
from time import perf_counter

import pytest

from pipework.benchmarks.load.level_run import LevelRun
from pipework.benchmarks.load.outcome import RequestOutcome

LEVEL_S = 0.15


def outcome(latency_s=0.001, error=None):
    now_s = perf_counter()
    return RequestOutcome(
        intended_s=now_s - latency_s, sent_s=now_s - latency_s, end_s=now_s, texts=2, error=error
    )


def follow(send, duration_s=LEVEL_S, warmup_s=0.0):
    """Follow a level while `send(run)` runs; return the run."""

    async def both():
        run = LevelRun(warmup_s=warmup_s, duration_s=duration_s)

        async def send_all():
            await send(run)
            run.requests_exhausted()

        await asyncio.wait_for(asyncio.gather(run.follow(), send_all()), 20)
        return run

    return asyncio.run(both())


async def until_over(run):
    await run.wait_until_over()


def test_a_level_lasts_its_duration_after_the_warm_up():
    run = follow(until_over, warmup_s=0.05)
    begin_s, end_s = run.span_s
    assert begin_s == pytest.approx(run.start_s + 0.05)
    assert end_s - begin_s == pytest.approx(LEVEL_S)
    assert end_s <= perf_counter()


def test_a_level_without_further_requests_ends_with_the_last_response():
    async def send(run):
        run.outcomes.append(outcome())

    run = follow(send, duration_s=50)
    assert run.span_s == (run.begin_s, run.outcomes[-1].end_s)
