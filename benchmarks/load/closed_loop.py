"""Closed-loop load: so many clients, each sending its next request when answered."""

import asyncio
from collections.abc import Iterator, Sequence

from pipework.benchmarks.load.drive import drive
from pipework.benchmarks.load.level import Driven
from pipework.benchmarks.load.level_run import Course, Length
from pipework.benchmarks.load.outcome import Prepared, endless, outcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

# A client rests this long after an error, so that a dead server is not hammered with connections.
PAUSE_S = 0.02


def closed_loop(  # noqa: PLR0913  (they are named)
    target: Target,
    workload: Workload,
    *,
    concurrency: int,
    duration_s: float,
    warmup_s: float,
    limit_s: float | None = None,
    progress: Progress,
    keep: list[float] | None = None,
) -> Level:
    """Measure one level of load. Errors are counted by kind, never raised.

    After the warm-up come windows, each a third of `duration_s` long, until three agree or
    `limit_s` has passed (three times `duration_s` by default); the last three are reported.
    Requests in flight at the end are waited for, 30 s at most. The latencies of what is reported,
    in seconds, are added to `keep`.
    """

    async def send(caller: Caller, requests: Sequence[Prepared], course: Course) -> None:
        shared = endless(requests)
        await asyncio.gather(*(_client(caller, shared, course) for _ in range(concurrency)))

    length = Length.of(warmup_s, duration_s, limit_s)
    return drive(
        target, workload, Driven(concurrency=concurrency), length, send, progress, keep=keep
    )


async def _client(caller: Caller, requests: Iterator[Prepared], course: Course) -> None:
    for request in requests:
        ended = await outcome(caller, request)
        course.outcomes.append(ended)
        if course.over:
            break
        if ended.error is not None:
            await asyncio.sleep(PAUSE_S)
