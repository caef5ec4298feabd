"""One request of a load, and what became of it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter

from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import Caller, Target

TIMEOUT_S = 30.0
MAX_REQUESTS = 500_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A request as it is sent, and how many texts it asks for."""

    content: bytes
    texts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A request: when it was to be sent, was sent and ended (perf_counter, seconds).

    `error` is None for an answer, else what went wrong, by kind.
    """

    intended_s: float
    sent_s: float
    end_s: float
    texts: int
    error: str | None


def prepared(target: Target, workload: Workload) -> Sequence[Prepared]:
    """Make every request of a workload beforehand, so that there is nothing to do but send."""
    return [
        Prepared(content=target.request(examples), texts=len(examples))
        for examples in workload.requests
    ]


def endless(requests: Sequence[Prepared]) -> Iterator[Prepared]:
    """Repeat requests, 500,000 in all."""
    return islice(cycle(requests), MAX_REQUESTS)


async def outcome(caller: Caller, request: Prepared, intended_s: float | None = None) -> Outcome:
    """Send a request and wait for its end, 30 s at most; it was to be sent now by default."""
    sent_s = perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            error = await caller.ask(request.content)
    except TimeoutError:
        error = "timeout"
    return Outcome(
        intended_s=sent_s if intended_s is None else intended_s,
        sent_s=sent_s,
        end_s=perf_counter(),
        texts=request.texts,
        error=error,
    )
