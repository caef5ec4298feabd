"""Closed-loop load: each client sends its next request after the response to the previous one."""

import asyncio
from collections.abc import Iterator, Sequence

from pipework.benchmarks.load.drive import drive
from pipework.benchmarks.load.level import LoadSpec, MeasuredLevel
from pipework.benchmarks.load.level_run import LevelRun
from pipework.benchmarks.load.outcome import PreparedRequest, repeat_requests, send_request
from pipework.benchmarks.targets import Caller, Target
from pipework.progress import Progress

# A client pauses this long after an error, so that a failed server is not flooded with connections.
PAUSE_S = 0.02


def closed_loop(target: Target, spec: LoadSpec, progress: Progress) -> MeasuredLevel:
    """Measure one level of load; request errors are counted by kind, never raised.

    After the warm-up, windows follow until three agree or the limit has passed; the last three
    windows are reported, see `LevelDuration`. Requests in flight at the end have at most 30 s to
    finish.
    """
    concurrency = spec.load.concurrency
    assert concurrency is not None, "the load of a closed loop is a number of clients"

    async def send(caller: Caller, requests: Sequence[PreparedRequest], run: LevelRun) -> None:
        shared = repeat_requests(requests)
        await asyncio.gather(*(_client(caller, shared, run) for _ in range(concurrency)))

    return drive(target, spec, send, progress)


async def _client(caller: Caller, requests: Iterator[PreparedRequest], run: LevelRun) -> None:
    for request in requests:
        outcome = await send_request(caller, request)
        run.outcomes.append(outcome)
        if run.is_over:
            break
        if outcome.error is not None:
            await asyncio.sleep(PAUSE_S)
