"""Open-loop load: requests are sent at a rate, independent of responses.

A closed loop slows down with its server, which hides the queueing delay that independent clients
would see; an open loop does not (Schroeder et al. 2006,
https://www.usenix.org/conference/nsdi-06/presentation/open-versus-closed-cautionary-tale).
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from pipework.benchmarks.load.drive import drive
from pipework.benchmarks.load.level import LoadSpec, MeasuredLevel, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration, LevelRun
from pipework.benchmarks.load.outcome import PreparedRequest, repeat_requests, send_request
from pipework.benchmarks.load.precise_sleep import PreciseTimer
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

BLOCK = 1024  # random intervals drawn per call


def open_loop(target: Target, spec: LoadSpec, progress: Progress, *, seed: int) -> MeasuredLevel:
    """Send requests at a mean rate (requests/s) and wait at most 30 s for outstanding responses.

    The intervals between requests are constant, or exponential (a Poisson process) and drawn from
    `seed`. After the warm-up, windows follow until three agree or the limit has passed; the last
    three windows are reported, see `LevelDuration`.
    """
    rate = spec.load.rate
    assert rate is not None, "the load of an open loop is a rate"
    poisson = spec.load.arrivals is Arrivals.POISSON
    times_s = _poisson(rate, seed) if poisson else _constant(rate)

    async def send(caller: Caller, requests: Sequence[PreparedRequest], run: LevelRun) -> None:
        await _send_all(caller, requests, times_s, run)

    reported_load = replace(spec.load, rate=round(rate, 3))
    return drive(target, replace(spec, load=reported_load), send, progress)


def replay(
    target: Target, trace: Trace, *, speed: float = 1.0, progress: Progress
) -> MeasuredLevel:
    """Replay the requests of a trace once, `speed` times as fast as recorded.

    All requests are reported, in three windows; there is no warm-up.
    """
    times_s = [at_s / speed for at_s in trace.at_s]

    async def send(caller: Caller, requests: Sequence[PreparedRequest], run: LevelRun) -> None:
        await _send_all(caller, requests, iter(times_s), run)
        await run.wait_until_over()

    duration_s = trace.duration_s / speed
    load = OfferedLoad(rate=round(len(times_s) / duration_s, 3), arrivals=Arrivals.TRACE)
    duration = LevelDuration(warmup_s=0.0, duration_s=duration_s, limit_s=duration_s)
    spec = LoadSpec(workload=trace.workload, load=load, duration=duration)
    return drive(target, spec, send, progress)


async def _send_all(
    caller: Caller, requests: Sequence[PreparedRequest], times_s: Iterator[float], run: LevelRun
) -> None:
    tasks: set[asyncio.Task[None]] = set()
    with PreciseTimer() as timer:
        for offset_s, request in zip(times_s, repeat_requests(requests), strict=False):
            intended_s = run.start_s + offset_s
            await timer.sleep_until(min(intended_s, run.latest_s))
            if run.is_over or intended_s >= run.latest_s:
                await run.wait_until_over()
                break
            task = asyncio.create_task(_send(caller, request, intended_s, run))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
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
