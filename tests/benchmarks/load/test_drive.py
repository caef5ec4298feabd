"""Execution of one level with a caller in memory."""

import asyncio
import gc

import pytest

from pipework.benchmarks.load.drive import drive
from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.outcome import send_request
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import target
from pipework.progress import NullProgress

SPEC = LoadSpec(
    workload=Workload.synthetic(texts_per_request=2, seed=0),
    load=OfferedLoad(concurrency=3),
    duration=LevelDuration(warmup_s=0.0, duration_s=60.0, limit_s=60.0),
)


class Stages(NullProgress):
    """Keeps titles, and counts the open stages."""

    def __init__(self):
        self.titles, self.open = [], 0

    def begin(self, title, total, unit):
        self.titles.append((title, total, unit))
        self.open += 1

    def end(self):
        self.open -= 1


async def send_five(caller, requests, run):
    for request in requests[:5]:
        run.outcomes.append(await send_request(caller, request))


def test_a_level_ends_when_all_requests_have_been_answered(serve):
    server = serve()
    measured = drive(target(server.url), SPEC, send_five, NullProgress())
    level, latencies_s = measured.level, measured.latencies_s
    assert (level.requests, level.texts, level.concurrency) == (5, 10, 3)
    assert len(server.bodies) == len(latencies_s) == 5
    assert max(latencies_s) * 1e3 == pytest.approx(level.latency_ms.max, abs=0.01)


def test_progress_is_ended_and_garbage_collection_enabled_after_an_error(serve):
    seen = []

    async def fail(*_):
        await asyncio.sleep(0)
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    progress = Stages()
    with pytest.raises(ZeroDivisionError):
        drive(target(serve().url), SPEC, fail, progress)
    assert progress.titles == [("3 clients", 60, "s")]
    assert progress.open == 0
    assert seen == [False]
    assert gc.isenabled()
