"""Closed-loop load: each client sends its next request after the response to the previous one."""

import asyncio
from collections.abc import Iterator, Sequence

from pipework.benchmarks.load.drive import drive
from pipework.benchmarks.load.level import OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration, LevelRun
from pipework.benchmarks.load.outcome import PreparedRequest, repeat_requests, send_request
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

# A client pauses this long after an error, so that a failed server is not flooded with connections.
PAUSE_S = 0.02


def closed_loop(  # noqa: PLR0913  (keyword-only)
    target: Target,
    workload: Workload,
    *,
    concurrency: int,
    duration_s: float,
    warmup_s: float,
    limit_s: float | None = None,
    progress: Progress,
    latencies_s: list[float] | None = None,
) -> Level:
    """Measure one level of load; request errors are counted by kind, never raised.

    After the warm-up, windows of `duration_s / 3` follow until three agree or `limit_s` has passed
    (by default three times `duration_s`); the last three windows are reported. Requests in flight
    at the end have at most 30 s to finish. The reported latencies, in seconds, are appended to
    `latencies_s`.
    """

    async def send(caller: Caller, requests: Sequence[PreparedRequest], run: LevelRun) -> None:
        shared = repeat_requests(requests)
        await asyncio.gather(*(_client(caller, shared, run) for _ in range(concurrency)))

    duration = LevelDuration.with_limit(warmup_s, duration_s, limit_s)
    return drive(
        target,
        workload,
        OfferedLoad(concurrency=concurrency),
        duration,
        send,
        progress,
        latencies_s=latencies_s,
    )


async def _client(caller: Caller, requests: Iterator[PreparedRequest], run: LevelRun) -> None:
    for request in requests:
        outcome = await send_request(caller, request)
        run.outcomes.append(outcome)
        if run.is_over:
            break
        if outcome.error is not None:
            await asyncio.sleep(PAUSE_S)
