"""Measurement of engines and of the tokenizer in this process, without a server."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import TypeVar

import numpy as np

from pipework.benchmarks.results_schema.results import OfflineLevel
from pipework.benchmarks.stats.confidence import latency

Item = TypeVar("Item")

TOKENIZING = "tokenizing"
WARMUP_CALLS = 3
MAX_CALLS = 500_000


def measure(
    call: Callable[[Sequence[Item]], object],
    items: Sequence[Item],
    stage: str,
    batch: int,
    duration_s: float,
) -> OfflineLevel:
    """Measure consecutive calls with `batch` of the items each, in their order."""
    batches = _batches(items, batch)
    for chunk in islice(batches, WARMUP_CALLS):
        call(chunk)
    start_s = perf_counter()
    ends_s = [start_s]
    for chunk in islice(batches, MAX_CALLS):
        call(chunk)
        ends_s.append(perf_counter())
        if ends_s[-1] - start_s >= duration_s:
            break
    call_s_R = np.diff(np.array(ends_s))
    calls = len(call_s_R)
    total_s = float(call_s_R.sum())
    return OfflineLevel(
        stage=stage,
        batch=batch,
        duration_s=round(total_s, 3),
        calls=calls,
        texts=calls * batch,
        texts_per_s=round(calls * batch / total_s, 2),
        latency_ms=latency(call_s_R),
    )


def _batches(items: Sequence[Item], batch: int) -> Iterator[list[Item]]:
    repeated = cycle(items)
    while True:
        yield list(islice(repeated, batch))
