"""One request of a load, and what became of it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter

from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import Caller, Target
from pipework.data.examples import Example
from pipework.errors import PipeError

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


PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstAnswer:
    """The name of the model that answered, and its answer as it came."""

    model: str
    content: bytes


def first_answer(target: Target, examples: Sequence[Example]) -> FirstAnswer:
    """Send a request of these texts, and check that each of them was answered.

    Raises:
        PipeError: no server, one that refuses, or one that answers something else.
    """
    content = asyncio.run(_ask(target, target.request(examples)))
    return FirstAnswer(model=target.check(content, len(examples)), content=content)


async def _ask(target: Target, request: bytes) -> bytes:
    caller = target.open(1)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await caller.answer(request)
    except TimeoutError as error:
        message = f"no server answers at {target.shown}: timeout"
        raise PipeError(message, f"it was given {PATIENCE_S:.0f} s") from error
    finally:
        await caller.close()
