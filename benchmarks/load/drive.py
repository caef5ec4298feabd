"""What both loops have in common: requests made beforehand, a course that is followed, a level."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from math import floor

import uvloop

from pipework.benchmarks.load.level import Driven, level, reported_s
from pipework.benchmarks.load.level_run import Course, Length, Measured
from pipework.benchmarks.load.outcome import Prepared, prepared
from pipework.benchmarks.load.process_usage import ServerWatch
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

Send = Callable[[Caller, Sequence[Prepared], Course], Coroutine[None, None, None]]


def drive(  # noqa: PLR0913  (what both loops hand on)
    target: Target,
    workload: Workload,
    driven: Driven,
    length: Length,
    send: Send,
    progress: Progress,
    *,
    keep: list[float] | None = None,
) -> Level:
    """Run one level; `send` returns when course or requests are over, and all is answered.

    The latencies that it reports, in seconds, are added to `keep`.
    """
    requests = prepared(target, workload)
    progress.begin(f"{driven}", max(1, floor(length.warmup_s + length.duration_s)), "s")
    try:
        with _no_garbage():
            measured = uvloop.run(_follow(target, requests, driven, length, send, progress))
    finally:
        progress.end()
    if keep is not None:
        keep += reported_s(measured, driven).tolist()
    return level(measured, driven, workload)


async def _follow(
    target: Target,
    requests: Sequence[Prepared],
    driven: Driven,
    length: Length,
    send: Send,
    progress: Progress,
) -> Measured:
    caller = target.open(driven.connections)
    watch = ServerWatch.of(target.host, target.port)
    course = Course(length, caller, watch, by_chance=driven.by_chance)
    telling = asyncio.create_task(course.tell(progress))

    async def send_all() -> None:
        await send(caller, requests, course)
        course.exhaust()

    try:
        # What follows the course asks the server for its times, at the end too.
        await asyncio.gather(course.follow(), send_all())
    finally:
        telling.cancel()
        await caller.close()
    return course.measured


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Looking through thousands of requests in flight would stop the sending."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
