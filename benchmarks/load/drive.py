"""Execution of one load level, shared by the closed and the open loop."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from math import floor

import uvloop

from pipework.benchmarks.load.level import OfferedLoad, level, reported_latencies_s
from pipework.benchmarks.load.level_run import LevelDuration, LevelMeasurement, LevelRun
from pipework.benchmarks.load.outcome import PreparedRequest, prepare_requests
from pipework.benchmarks.load.process_usage import ServerMonitor
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

Send = Callable[[Caller, Sequence[PreparedRequest], LevelRun], Coroutine[None, None, None]]


def drive(  # noqa: PLR0913  (passed on by both loops)
    target: Target,
    workload: Workload,
    load: OfferedLoad,
    duration: LevelDuration,
    send: Send,
    progress: Progress,
    *,
    latencies_s: list[float] | None = None,
) -> Level:
    """Run one level and return its result.

    `send` sends the requests and returns once sending has stopped and all responses have arrived.
    The reported latencies, in seconds, are appended to `latencies_s`.
    """
    requests = prepare_requests(target, workload)
    progress.begin(f"{load}", max(1, floor(duration.warmup_s + duration.duration_s)), "s")
    try:
        with _garbage_collection_paused():
            measurement = uvloop.run(_measure(target, requests, load, duration, send, progress))
    finally:
        progress.end()
    if latencies_s is not None:
        latencies_s += reported_latencies_s(measurement, load).tolist()
    return level(measurement, load, workload)


async def _measure(
    target: Target,
    requests: Sequence[PreparedRequest],
    load: OfferedLoad,
    duration: LevelDuration,
    send: Send,
    progress: Progress,
) -> LevelMeasurement:
    caller = target.open(load.connections)
    monitor = ServerMonitor.of(target.host, target.port)
    run = LevelRun(duration, caller, monitor, random_arrivals=load.random_arrivals)
    progress_task = asyncio.create_task(run.report_progress(progress))

    async def send_all() -> None:
        await send(caller, requests, run)
        run.requests_exhausted()

    try:
        # The connections stay open until `follow` has read the server's stage times.
        await asyncio.gather(run.follow(), send_all())
    finally:
        progress_task.cancel()
        await caller.close()
    return run.measurement


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: scanning thousands of requests in flight would delay sending."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
