"""Closed-loop load over HTTP: so many clients, each sending its next request when answered."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter

import numpy as np

from benchmarks.latency import histogram, latency
from benchmarks.results import Level
from benchmarks.workload import Workload
from pipework.errors import MissingDependencyError, PipeError
from pipework.progress import Progress

try:
    import aiohttp
except ImportError as missing:
    NO_AIOHTTP = "measuring a server needs aiohttp, which is not installed"
    raise MissingDependencyError(NO_AIOHTTP, "pip install 'pipework[bench]'") from missing

TIMEOUT_S = 30.0
MAX_REQUESTS = 500_000
# A client rests this long after an error, so that a dead server is not hammered with connections.
PAUSE_S = 0.02
OK = 200
REFUSED = (400, 413, 422)
HINT_TEXTS = "send other texts with --file, or fewer at once with --batch"
HINT_URL = "give the URL of a server that `pipe serve RUN` started"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One request: when it was sent and ended (perf_counter, seconds), and what went wrong."""

    start_s: float
    end_s: float
    error: str | None


def probe(url: str, workload: Workload) -> str:
    """Send the first request, check its answer, and return the name of the model behind `url`.

    Raises:
        PipeError: no server, a server that refuses, or one that is not a pipework server.
    """
    status, content = asyncio.run(_first_answer(url, workload.bodies()[0]))
    if status != OK:
        message = f"{url}/v1/predict refused the first request: HTTP {status}: {_error(content)}"
        raise PipeError(message, HINT_TEXTS if status in REFUSED else HINT_URL)
    with suppress(ValueError, LookupError, TypeError):
        answer = json.loads(content)
        if len(answer["predictions"]) == workload.texts_per_request:
            return str(answer["model"])
    expected = f"{workload.texts_per_request} predictions"
    message = f"{url}/v1/predict answered, but not with the {expected} expected"
    raise PipeError(message, HINT_URL)


def closed_loop(
    url: str,
    workload: Workload,
    *,
    concurrency: int,
    duration_s: float,
    warmup_s: float,
    progress: Progress,
) -> Level:
    """Measure one level of load. Errors are counted by kind, never raised.

    Requests in flight at the end are waited for, 30 s at most.
    """
    bodies = workload.bodies()
    total_s = warmup_s + duration_s
    progress.begin(
        f"{concurrency} client{'s' * (concurrency > 1)}", max(1, math.floor(total_s)), "s"
    )
    try:
        start_s = perf_counter()
        outcomes = asyncio.run(_all_clients(url, bodies, concurrency, start_s + total_s, progress))
    finally:
        progress.end()
    window_s = (start_s + warmup_s, start_s + total_s)
    return summarise(outcomes, window_s, concurrency, workload.texts_per_request)


def summarise(
    outcomes: list[Outcome], window_s: tuple[float, float], concurrency: int, batch: int
) -> Level:
    """Turn the outcomes of a level into figures; `window_s` is (end of the warm-up, end)."""
    begin_s, end_s = window_s
    # The window closes early if the clients ran out of requests.
    end_s = min(end_s, max(one.end_s for one in outcomes))
    measured = [one for one in outcomes if one.end_s > begin_s]
    answered = [one for one in measured if one.error is None]
    latencies_s = np.array([one.end_s - one.start_s for one in answered], np.float64)
    duration_s = max(end_s - begin_s, 1e-9)
    per_s = sum(one.end_s <= end_s for one in answered) / duration_s
    return Level(
        concurrency=concurrency,
        texts_per_request=batch,
        duration_s=round(duration_s, 3),
        requests=len(answered),
        texts=len(answered) * batch,
        texts_per_s=round(per_s * batch, 2),
        requests_per_s=round(per_s, 2),
        latency_ms=latency(latencies_s) if answered else None,
        histogram=histogram(latencies_s) if answered else None,
        errors=dict(Counter(one.error for one in measured if one.error is not None)),
    )


async def _all_clients(
    url: str, bodies: list[bytes], concurrency: int, deadline_s: float, progress: Progress
) -> list[Outcome]:
    endless = islice(cycle(bodies), MAX_REQUESTS)
    outcomes: list[Outcome] = []
    ticker = asyncio.create_task(_tick(outcomes, deadline_s, progress))
    try:
        async with session(concurrency) as shared:
            clients = (
                _client(shared, url, endless, deadline_s, outcomes) for _ in range(concurrency)
            )
            await asyncio.gather(*clients)
    finally:
        ticker.cancel()
    return outcomes


async def _client(
    client: aiohttp.ClientSession,
    url: str,
    bodies: Iterator[bytes],
    deadline_s: float,
    outcomes: list[Outcome],
) -> None:
    for body in bodies:
        start_s = perf_counter()
        error = await failure(client, url, body)
        end_s = perf_counter()
        outcomes.append(Outcome(start_s=start_s, end_s=end_s, error=error))
        if end_s >= deadline_s:
            break
        if error is not None:
            await asyncio.sleep(PAUSE_S)


async def failure(client: aiohttp.ClientSession, url: str, body: bytes) -> str | None:
    """Send one request; return None for success, else the kind of error."""
    try:
        async with client.post(f"{url}/v1/predict", data=body, allow_redirects=False) as response:
            await response.read()
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        return _kind(error)
    return None if response.status == OK else f"HTTP {response.status}"


def _kind(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "timeout"
        case aiohttp.ClientSSLError():
            return "TLS failed"
        case aiohttp.ClientConnectorError():
            return "no connection"
        case (
            aiohttp.ServerDisconnectedError()
            | aiohttp.ClientPayloadError()
            | aiohttp.ClientOSError()
        ):
            return "connection dropped"
        case _:
            return type(error).__name__


async def _first_answer(url: str, body: bytes) -> tuple[int, bytes]:
    try:
        async with session(1) as client, client.post(f"{url}/v1/predict", data=body) as response:
            return response.status, await response.read()
    except aiohttp.InvalidURL as error:
        message = f"{url} is not a URL"
        raise PipeError(message, "for example http://127.0.0.1:8000") from error
    except (aiohttp.ClientError, OSError) as error:
        message = f"no server answers at {url}: {_kind(error)}"
        raise PipeError(message, HINT_URL) from error


def session(concurrency: int) -> aiohttp.ClientSession:
    """Return a client of at most so many connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=concurrency),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    )


async def _tick(outcomes: list[Outcome], deadline_s: float, progress: Progress) -> None:
    before = 0
    while perf_counter() + 1 <= deadline_s:
        await asyncio.sleep(1)
        progress.advance(1, {"requests/s": f"{len(outcomes) - before:,}"})
        before = len(outcomes)


def _error(content: bytes) -> str:
    with suppress(ValueError, LookupError, TypeError):
        return " ".join(str(json.loads(content)["error"]).split())[:200]
    return "no explanation"
