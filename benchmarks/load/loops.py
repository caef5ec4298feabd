"""Closed-loop and open-loop load on a target.

In a closed loop, each client sends its next request after the response to the previous one. In an
open loop, requests are sent at a rate, independent of responses. A closed loop slows down with its
server, which hides the queueing delay that independent clients would see; an open loop does not
(Schroeder et al. 2006,
https://www.usenix.org/conference/nsdi-06/presentation/open-versus-closed-cautionary-tale).
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from math import floor

import numpy as np
import uvloop

from pipework.benchmarks.load.level import LoadSpec, MeasuredLevel, OfferedLoad, level
from pipework.benchmarks.load.level_run import LevelRun
from pipework.benchmarks.load.outcome import (
    PreparedRequest,
    prepare_requests,
    repeat_requests,
    send_request,
)
from pipework.benchmarks.load.precise_sleep import PreciseTimer
from pipework.benchmarks.load.process_usage import ServerMonitor
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

# A client pauses this long after an error, so that a failed server is not flooded with connections.
PAUSE_S = 0.02
BLOCK = 1024  # random intervals drawn per call

Send = Callable[[Caller, Sequence[PreparedRequest], LevelRun], Coroutine[None, None, None]]


def drive(target: Target, spec: LoadSpec, send: Send, progress: Progress) -> MeasuredLevel:
    """Run one level and return its result.

    `send` sends the requests and returns once sending has stopped and all responses have arrived.
    """
    requests = prepare_requests(target, spec.workload)
    seconds = max(1, floor(spec.warmup_s + spec.duration_s))
    with progress.stage(f"{spec.load}", seconds, "s"), _garbage_collection_paused():
        run = uvloop.run(_measure(target, requests, spec, send, progress))
    return level(run, spec.load, spec.workload)


async def _measure(
    target: Target,
    requests: Sequence[PreparedRequest],
    spec: LoadSpec,
    send: Send,
    progress: Progress,
) -> LevelRun:
    caller = target.open(spec.load.connections)
    monitor = ServerMonitor.of(target.address.host, target.address.port)
    run = LevelRun(warmup_s=spec.warmup_s, duration_s=spec.duration_s, monitor=monitor)
    progress_task = asyncio.create_task(run.report_progress(progress))

    async def send_all() -> None:
        await send(caller, requests, run)
        run.requests_exhausted()

    try:
        await asyncio.gather(run.follow(), send_all())
    finally:
        progress_task.cancel()
        await caller.close()
    return run


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: scanning thousands of requests in flight would delay sending."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def closed_loop(target: Target, spec: LoadSpec, progress: Progress) -> MeasuredLevel:
    """Measure one level of load; request errors are counted by kind, never raised.

    Requests in flight at the end have at most 30 s to finish.
    """
    return drive(target, spec, partial(_send_in_turn, spec.load.connections), progress)


async def _send_in_turn(
    clients: int, caller: Caller, requests: Sequence[PreparedRequest], run: LevelRun
) -> None:
    shared = repeat_requests(requests)
    await asyncio.gather(*(_client(caller, shared, run) for _ in range(clients)))


async def _client(caller: Caller, requests: Iterator[PreparedRequest], run: LevelRun) -> None:
    for request in requests:
        outcome = await send_request(caller, request)
        run.outcomes.append(outcome)
        if run.is_over:
            break
        if outcome.error is not None:
            await asyncio.sleep(PAUSE_S)


def open_loop(target: Target, spec: LoadSpec, progress: Progress, *, seed: int) -> MeasuredLevel:
    """Send requests at a mean rate (requests/s) and wait at most 30 s for outstanding responses.

    The intervals between requests are constant, or exponential (a Poisson process) and drawn from
    `seed`.
    """
    rate = spec.load.rate
    assert rate is not None, "the load of an open loop is a rate"
    poisson = spec.load.arrivals is Arrivals.POISSON
    times_s = _poisson(rate, seed) if poisson else _constant(rate)

    reported_load = replace(spec.load, rate=round(rate, 3))
    return drive(target, replace(spec, load=reported_load), partial(_send_at, times_s), progress)


def replay(
    target: Target, trace: Trace, *, speed: float = 1.0, progress: Progress
) -> MeasuredLevel:
    """Replay the requests of a trace once, `speed` times as fast as recorded.

    All requests are reported; there is no warm-up.
    """
    times_s = (at_s / speed for at_s in trace.at_s)
    spec = LoadSpec(
        workload=trace.workload,
        load=OfferedLoad(rate=round(trace.rate * speed, 3), arrivals=Arrivals.TRACE),
        warmup_s=0.0,
        duration_s=trace.duration_s / speed,
    )
    return drive(target, spec, partial(_send_at, times_s), progress)


async def _send_at(
    times_s: Iterator[float], caller: Caller, requests: Sequence[PreparedRequest], run: LevelRun
) -> None:
    """Send requests at these seconds after the start, until the level is over."""
    tasks: set[asyncio.Task[None]] = set()
    with PreciseTimer() as timer:
        for offset_s, request in zip(times_s, repeat_requests(requests), strict=False):
            intended_s = run.start_s + offset_s
            await timer.sleep_until(min(intended_s, run.end_s))
            if intended_s >= run.end_s:
                break
            task = asyncio.create_task(_send(caller, request, intended_s, run))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    await run.wait_until_over()
    await asyncio.gather(*tasks)


async def _send(caller: Caller, request: PreparedRequest, intended_s: float, run: LevelRun) -> None:
    run.outcomes.append(await send_request(caller, request, intended_s))


def _constant(rate: float) -> Iterator[float]:
    """Yield send times in seconds at constant intervals, without end."""
    return (number / rate for number in count())


def _poisson(rate: float, seed: int) -> Iterator[float]:
    """Yield send times in seconds of a Poisson process, without end."""
    random = np.random.default_rng(seed)
    offset_s = 0.0
    while True:
        for gap_s in random.exponential(1 / rate, BLOCK).tolist():
            offset_s += gap_s
            yield offset_s
