"""Open-loop load: requests come at a rate, whether those before were answered or not.

A closed loop slows down with its server and so hides what waiting clients would see; an open one
does not (Schroeder et al. 2006, https://www.usenix.org/conference/nsdi-06/presentation/open-versus-closed-cautionary-tale).
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from pipework.benchmarks.load.drive import drive
from pipework.benchmarks.load.level import Driven
from pipework.benchmarks.load.level_run import Course, Length
from pipework.benchmarks.load.outcome import Prepared, endless, outcome
from pipework.benchmarks.load.precise_sleep import Alarm
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals, Level
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

BLOCK = 1024  # times drawn at once


def open_loop(  # noqa: PLR0913  (they are named)
    target: Target,
    workload: Workload,
    *,
    rate: float,
    duration_s: float,
    arrivals: Arrivals = Arrivals.POISSON,
    warmup_s: float = 0.0,
    limit_s: float | None = None,
    seed: int,
    progress: Progress,
    keep: list[float] | None = None,
) -> Level:
    """Send requests at a mean rate, in requests a second, and wait for all answers, 30 s at most.

    The times between them are all the same, or exponential (a Poisson process), drawn from the
    seed. After the warm-up come windows, each a third of `duration_s` long, until three agree or
    `limit_s` has passed (three times `duration_s` by default); the last three are reported.
    Their latencies, in seconds, are added to `keep`.
    """
    times_s = _poisson(rate, seed) if arrivals is Arrivals.POISSON else _constant(rate)

    async def send(caller: Caller, requests: Sequence[Prepared], course: Course) -> None:
        await _send_all(caller, requests, times_s, course)

    driven = Driven(rate=round(rate, 3), arrivals=arrivals)
    length = Length.of(warmup_s, duration_s, limit_s)
    return drive(target, workload, driven, length, send, progress, keep=keep)


def replay(target: Target, trace: Trace, *, speed: float = 1.0, progress: Progress) -> Level:
    """Send the requests of a trace at their own times, so many times as fast, once.

    All is reported, in three windows; nothing is left out as a warm-up.
    """
    times_s = [at_s / speed for at_s in trace.at_s]

    async def send(caller: Caller, requests: Sequence[Prepared], course: Course) -> None:
        await _send_all(caller, requests, iter(times_s), course)
        await course.end()

    duration_s = trace.duration_s / speed
    driven = Driven(rate=round(len(times_s) / duration_s, 3), arrivals=Arrivals.TRACE)
    length = Length.of(0.0, duration_s, duration_s)
    return drive(target, trace.workload, driven, length, send, progress)


async def _send_all(
    caller: Caller, requests: Sequence[Prepared], times_s: Iterator[float], course: Course
) -> None:
    waiting: set[asyncio.Task[None]] = set()
    with Alarm() as alarm:
        for after_s, request in zip(times_s, endless(requests), strict=False):
            intended_s = course.start_s + after_s
            await alarm.until(min(intended_s, course.latest_s))
            if course.over or intended_s >= course.latest_s:
                await course.end()
                break
            task = asyncio.create_task(_one(caller, request, intended_s, course))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
    await asyncio.gather(*waiting)


async def _one(caller: Caller, request: Prepared, intended_s: float, course: Course) -> None:
    course.outcomes.append(await outcome(caller, request, intended_s))


def _constant(rate: float) -> Iterator[float]:
    """Yield the seconds after which requests are to be sent, without an end."""
    return (number / rate for number in count())


def _poisson(rate: float, seed: int) -> Iterator[float]:
    """Yield the seconds after which requests are to be sent, at random, without an end."""
    random = np.random.default_rng(seed)
    after_s = 0.0
    while True:
        for gap_s in random.exponential(1 / rate, BLOCK).tolist():
            after_s += gap_s
            yield after_s
