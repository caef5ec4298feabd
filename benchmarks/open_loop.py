"""Open-loop load over HTTP: requests come at a rate, whether those before were answered or not.

A closed loop slows down with its server and so hides what waiting clients would see; an open one
does not (Schroeder et al. 2006, https://www.usenix.org/conference/nsdi-06/presentation/open-versus-closed-cautionary-tale).
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import cycle
from time import perf_counter

import numpy as np
import uvloop

from benchmarks.connections import ConnectionLostError, Connections, requests
from benchmarks.latency import latency
from benchmarks.latency_results import Latency
from benchmarks.serving_results import OpenLevel
from benchmarks.workload import Workload
from pipework.progress import Progress
from serve.schemas import PREDICT_PATH

BUSY = f"HTTP {HTTPStatus.TOO_MANY_REQUESTS}"
LATE_S = 0.01
CONNECTIONS = 2048
TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A request: when it was to be sent, was sent and ended (perf_counter), and its outcome.

    `outcome` is None for an answer, else the kind of error or "HTTP STATUS".
    """

    intended_s: float
    sent_s: float
    end_s: float
    outcome: str | None


def open_loop(
    url: str, workload: Workload, *, rate: float, duration_s: float, seed: int, progress: Progress
) -> OpenLevel:
    """Send requests for so long at a mean rate, in requests a second, and wait for all answers.

    The times between them are exponential (a Poisson process), drawn from the seed.
    """
    gaps_R = np.random.default_rng(seed).exponential(1 / rate, int(rate * duration_s))
    title = f"{rate:,.0f} requests/s"
    progress.begin(title, len(gaps_R), "requests")
    gc.collect()
    gc.disable()  # looking through thousands of requests in flight would stop the sending
    try:
        sent = uvloop.run(_send_all(url, workload.bodies(), np.cumsum(gaps_R).tolist(), progress))
    finally:
        gc.enable()
        progress.end()
    return _level(sent, rate, float(gaps_R.sum()), workload.texts_per_request)


async def _send_all(
    url: str, bodies: Sequence[bytes], times_s_R: Sequence[float], progress: Progress
) -> list[Sent]:
    connections = Connections(url, CONNECTIONS)
    endless = cycle(requests(url, PREDICT_PATH, bodies))
    start_s = perf_counter()
    tasks: list[asyncio.Task[Sent]] = []
    try:
        for after_s, request in zip(times_s_R, endless, strict=False):
            wait_s = start_s + after_s - perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(_send(connections, request, start_s + after_s)))
            progress.advance(1)
        return await asyncio.gather(*tasks)
    finally:
        connections.close()


async def _send(connections: Connections, request: bytes, intended_s: float) -> Sent:
    sent_s = perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status = await connections.ask(request)
            outcome = None if status == HTTPStatus.OK else f"HTTP {status}"
    except TimeoutError:
        outcome = "timeout"
    except ConnectionLostError:
        outcome = "connection dropped"
    except OSError:
        outcome = "no connection"
    return Sent(intended_s=intended_s, sent_s=sent_s, end_s=perf_counter(), outcome=outcome)


def _level(sent: Sequence[Sent], rate: float, duration_s: float, texts: int) -> OpenLevel:
    answered = [one for one in sent if one.outcome is None]
    rejected = [one for one in sent if one.outcome == BUSY]
    end_s = sent[0].intended_s + duration_s
    in_time = sum(one.end_s <= end_s for one in answered)
    others = (one.outcome for one in sent if one.outcome not in (None, BUSY))
    return OpenLevel(
        rate=round(rate, 2),
        duration_s=round(duration_s, 3),
        texts_per_request=texts,
        sent=len(sent),
        answered=len(answered),
        rejected=len(rejected),
        late=sum(one.sent_s - one.intended_s > LATE_S for one in sent),
        goodput=round(in_time * texts / duration_s, 2),
        latency_ms=_latency(answered),
        rejected_ms=_latency(rejected, from_sending=True),
        errors=dict(Counter(str(one) for one in others)),
    )


def _latency(requests: Sequence[Sent], *, from_sending: bool = False) -> Latency | None:
    if not requests:
        return None
    starts_s = (one.sent_s if from_sending else one.intended_s for one in requests)
    ends_s = (one.end_s for one in requests)
    return latency(
        np.array([end_s - start_s for start_s, end_s in zip(starts_s, ends_s, strict=True)])
    )
