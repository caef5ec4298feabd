"""Measurement of engines and of the tokenizer in this process, without a server."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import TypeVar

import numpy as np

from pipework.benchmarks.results_schema.results import OfflineLevel
from pipework.benchmarks.stats.confidence import (
    DEGREES_OF_FREEDOM,
    SLICES,
    Floats,
    SlicedSeries,
    latency,
)
from pipework.data.examples import Example
from pipework.scoring.evaluation import Engine
from pipework.text.encoding import TextEncoder

Item = TypeVar("Item")

TOKENIZING = "tokenizing"
WARMUP_CALLS = 3
MAX_CALLS = 500_000


def measure_tokenizing(
    encoder: TextEncoder, examples: Sequence[Example], *, batch: int, duration_s: float
) -> OfflineLevel:
    """Measure the tokenizer with `batch` texts per call."""
    return _measure(encoder.encode, examples, stage=TOKENIZING, batch=batch, duration_s=duration_s)


def measure_engine(
    name: str,
    engine: Engine,
    encoder: TextEncoder,
    examples: Sequence[Example],
    *,
    batch: int,
    duration_s: float,
) -> OfflineLevel:
    """Measure an engine, from token ids to logits, with `batch` inputs per call in their order."""
    encodings = encoder.encode(examples)
    return _measure(engine.infer, encodings, stage=name, batch=batch, duration_s=duration_s)


def _measure(
    call: Callable[[Sequence[Item]], object],
    items: Sequence[Item],
    *,
    stage: str,
    batch: int,
    duration_s: float,
) -> OfflineLevel:
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
    return level_of_calls(np.diff(np.array(ends_s)), stage=stage, batch=batch)


def level_of_calls(call_s_R: Floats, *, stage: str, batch: int) -> OfflineLevel:
    """Return the level of consecutive calls with these durations in seconds."""
    calls, total_s = len(call_s_R), float(call_s_R.sum())
    slices = min(SLICES, calls)
    series, slice_R = (
        SlicedSeries(slices=slices, reported=slices),
        np.arange(calls) * slices // calls,
    )
    error_s = series.standard_error(slice_R, call_s_R - total_s / calls)
    texts_per_s = calls * batch / total_s
    return OfflineLevel(
        stage=stage,
        batch=batch,
        duration_s=round(total_s, 3),
        calls=calls,
        texts=calls * batch,
        texts_per_s=round(texts_per_s, 2),
        latency_ms=latency(call_s_R),
        interval_ms=series.percentile_intervals_ms(slice_R, call_s_R, call_s_R),
        interval_texts_per_s=series.rate_interval(texts_per_s, error_s / total_s, calls),
        freedom=DEGREES_OF_FREEDOM,
    )


def _batches(items: Sequence[Item], batch: int) -> Iterator[list[Item]]:
    repeated = cycle(items)
    while True:
        yield list(islice(repeated, batch))
