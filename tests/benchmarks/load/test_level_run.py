"""Windows of a level, and when it ends."""

import asyncio
from time import perf_counter

import pytest

from pipework.benchmarks.load import level_run
from pipework.benchmarks.load.level_run import LevelDuration, LevelRun
from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.targets import StageTimes

WINDOW_S = 0.05


class Caller:
    """Reports one more request, with 0.5 s in its queue, at each call."""

    def __init__(self, delay_s=0.0):
        self.requests, self.delay_s = 0, delay_s

    async def stage_times(self):
        await asyncio.sleep(self.delay_s)
        self.requests += 1
        return StageTimes(requests=self.requests, seconds={"queue": 0.5 * self.requests})


def outcome(latency_s=0.001, error=None):
    now_s = perf_counter()
    return RequestOutcome(
        intended_s=now_s - latency_s, sent_s=now_s - latency_s, end_s=now_s, texts=2, error=error
    )


def duration(windows, warmup_s=0.0):
    return LevelDuration(warmup_s=warmup_s, duration_s=3 * WINDOW_S, limit_s=windows * WINDOW_S)


def follow(run_duration, send, caller=None):
    """Follow a level while `send(run)` runs; return the run."""

    async def both():
        run = LevelRun(run_duration, caller or Caller(), None, random_arrivals=False)

        async def send_all():
            await send(run)
            run.requests_exhausted()

        await asyncio.wait_for(asyncio.gather(run.follow(), send_all()), 20)
        return run

    return asyncio.run(both())


async def until_over(run):
    await run.wait_until_over()


def test_the_limit_is_three_times_the_duration_by_default():
    assert LevelDuration.with_limit(1, 6, None).limit_s == 18
    assert LevelDuration.with_limit(1, 6, 7).limit_s == 7


@pytest.mark.parametrize(("limit_s", "windows"), [(18, 9), (6, 3), (1, 3), (8, 4)])
def test_a_level_has_at_least_three_windows(limit_s, windows):
    found = LevelDuration(warmup_s=0, duration_s=6, limit_s=limit_s)
    assert (found.window_s, found.max_windows) == (2, windows)


def test_a_level_without_agreement_ends_at_its_limit():
    run = follow(duration(5), until_over)
    measurement = run.measurement
    assert len(measurement.windows) == 5
    assert not measurement.stable
    begin_s, end_s = measurement.span_s
    assert end_s - begin_s == pytest.approx(3 * WINDOW_S)
    assert end_s == pytest.approx(run.latest_s)
    assert measurement.whole_s == (run.begin_s, end_s)


def test_a_level_ends_when_three_windows_agree(monkeypatch):
    monkeypatch.setattr(level_run, "agree", lambda windows, **_: len(windows) == 4)
    measurement = follow(duration(50), until_over).measurement
    assert measurement.stable
    assert len(measurement.windows) == 4


def test_a_window_has_the_requests_that_ended_within_it():
    async def send(run):
        while not run.is_over:
            run.outcomes.append(outcome())
            run.outcomes.append(outcome(error="HTTP 429"))
            await asyncio.sleep(WINDOW_S / 5)

    run = follow(duration(3, warmup_s=WINDOW_S), send)
    windows = run.measurement.windows
    counted = sum(window.texts_per_s * window.duration_s for window in windows)
    begin_s, end_s = run.measurement.whole_s
    within = [one for one in run.outcomes if begin_s < one.end_s <= end_s and one.error is None]
    assert counted == pytest.approx(2 * len(within), abs=4 + 0.02)
    assert len(run.outcomes) > 2 * len(within)  # some ended in the warm-up


def test_a_level_without_further_requests_ends_with_the_last_response():
    async def send(run):
        run.outcomes.append(outcome())

    run = follow(duration(1000, warmup_s=0.0), send)
    measurement = run.measurement
    assert measurement.windows == ()
    assert measurement.span_s == (run.begin_s, run.outcomes[-1].end_s)


def test_stage_times_are_the_mean_since_the_warm_up():
    assert follow(duration(3), until_over).measurement.stages_ms == {"queue": 500.0}


def test_a_server_that_does_not_report_stage_times_does_not_stop_the_level(monkeypatch):
    monkeypatch.setattr(level_run, "STAGE_TIMES_TIMEOUT_S", 0.02)
    assert follow(duration(3), until_over, Caller(delay_s=60)).measurement.stages_ms == {}
