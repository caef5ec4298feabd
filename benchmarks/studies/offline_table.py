"""Engines in one process as lines of a table."""

from collections.abc import Iterator

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.results import BenchResult

HEAD = ("model", "stage", "texts a call", "texts/s", "p50 ms", "p99 ms")


def offline_rows(result: BenchResult) -> Iterator[tuple[str, ...]]:
    """Yield tokenizing, and of the engines the one that answers most in a call, by call size."""
    engines = tables.engines(result)
    most = max(engines, key=lambda one: one.texts_per_s).stage if engines else None
    for level in (*tables.tokenizing(result), *(one for one in engines if one.stage == most)):
        latency = level.latency_ms
        times = (tables.ms(latency.p50), tables.ms(latency.p99))
        yield result.model, level.stage, f"{level.batch}", f"{level.texts_per_s:,.0f}", *times
