"""Sending of single requests, and their outcomes."""

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
class PreparedRequest:
    """A serialised request and its number of texts."""

    content: bytes
    texts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutcome:
    """Times of a request (perf_counter, seconds): intended send time, actual send time and end.

    `error` is None for a successful request, else the kind of error.
    """

    intended_s: float
    sent_s: float
    end_s: float
    texts: int
    error: str | None


def prepare_requests(target: Target, workload: Workload) -> Sequence[PreparedRequest]:
    """Serialise all requests of a workload before the level starts."""
    return [
        PreparedRequest(content=target.request(examples), texts=len(examples))
        for examples in workload.requests
    ]


def repeat_requests(requests: Sequence[PreparedRequest]) -> Iterator[PreparedRequest]:
    """Repeat the requests cyclically, at most 500,000 in total."""
    return islice(cycle(requests), MAX_REQUESTS)


async def send_request(
    caller: Caller, request: PreparedRequest, intended_s: float | None = None
) -> RequestOutcome:
    """Send a request and wait at most 30 s for its response; `intended_s` defaults to now."""
    sent_s = perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            error = await caller.send(request.content)
    except TimeoutError:
        error = "timeout"
    return RequestOutcome(
        intended_s=sent_s if intended_s is None else intended_s,
        sent_s=sent_s,
        end_s=perf_counter(),
        texts=request.texts,
        error=error,
    )


def first_response(target: Target, examples: Sequence[Example]) -> str:
    """Send one request with these texts, check the response, and return the name of its model.

    Raises:
        PipeError: no server responds, it refuses the request, or the response is unexpected.
    """
    content = asyncio.run(_fetch(target, target.request(examples)))
    return target.check(content, len(examples))


async def _fetch(target: Target, request: bytes) -> bytes:
    caller = target.open(1)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await caller.fetch(request)
    except TimeoutError as error:
        message = f"no response from {target.display_url} within {TIMEOUT_S:g} s"
        raise PipeError(message, "check the URL and whether the server is overloaded") from error
    finally:
        await caller.close()
