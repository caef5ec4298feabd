"""Execution of one load level, shared by the closed and the open loop."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from math import floor

import uvloop

from pipework.benchmarks.load.level import LoadSpec, MeasuredLevel, level, reported_latencies_s
from pipework.benchmarks.load.level_run import LevelMeasurement, LevelRun
from pipework.benchmarks.load.outcome import PreparedRequest, prepare_requests
from pipework.benchmarks.load.process_usage import ServerMonitor
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

Send = Callable[[Caller, Sequence[PreparedRequest], LevelRun], Coroutine[None, None, None]]


def drive(target: Target, spec: LoadSpec, send: Send, progress: Progress) -> MeasuredLevel:
    """Run one level and return its result.

    `send` sends the requests and returns once sending has stopped and all responses have arrived.
    """
    requests, duration = prepare_requests(target, spec.workload), spec.duration
    progress.begin(f"{spec.load}", max(1, floor(duration.warmup_s + duration.duration_s)), "s")
    try:
        with _garbage_collection_paused():
            measurement = uvloop.run(_measure(target, requests, spec, send, progress))
    finally:
        progress.end()
    return MeasuredLevel(
        level=level(measurement, spec.load, spec.workload),
        latencies_s=tuple(reported_latencies_s(measurement, spec.load).tolist()),
    )


async def _measure(
    target: Target,
    requests: Sequence[PreparedRequest],
    spec: LoadSpec,
    send: Send,
    progress: Progress,
) -> LevelMeasurement:
    caller = target.open(spec.load.connections)
    monitor = ServerMonitor.of(target.host, target.port)
    run = LevelRun(spec.duration, caller, monitor, random_arrivals=spec.load.random_arrivals)
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
