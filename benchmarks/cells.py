"""The figures of a result as words: what the terminal, the page and the README all show."""

from collections.abc import Sequence

from benchmarks.latency_results import Latency
from benchmarks.offline import TOKENIZING
from benchmarks.results import BenchResult, Level, OfflineLevel

# From the first level within this part of the peak on, more clients only wait longer.
NEAR_PEAK = 0.95
LEVEL_HEAD = (
    *("clients", "texts/s", "requests/s"),
    *("p50 ms", "p90 ms", "p95 ms", "p99 ms", "max ms", "errors"),
)
OFFLINE_HEAD = ("stage", "texts a call", "texts/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms")
NO_ERRORS = "0"


def table(result: BenchResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a result's table."""
    if result.offline:
        return OFFLINE_HEAD, [_offline_row(level) for level in result.offline]
    return LEVEL_HEAD, [_level_row(level) for level in result.levels]


def best(levels: Sequence[Level]) -> Level:
    """Return the level with the fewest clients among those within 5 % of the peak throughput."""
    peak = max(level.texts_per_s for level in levels)
    near = (level for level in levels if level.texts_per_s >= NEAR_PEAK * peak)
    return min(near, key=lambda level: level.concurrency)


def engines(result: BenchResult) -> list[OfflineLevel]:
    """Return the offline levels of engines."""
    return [level for level in result.offline if level.stage != TOKENIZING]


def tokenizing(result: BenchResult) -> list[OfflineLevel]:
    """Return the offline levels of the tokenizer."""
    return [level for level in result.offline if level.stage == TOKENIZING]


def ms(value: float) -> str:
    """Write milliseconds with about three digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2  # noqa: PLR2004
    return f"{value:,.{digits}f}"


def clients(level: Level) -> str:
    """Say with how many clients a level ran."""
    return f"{level.concurrency} client{'s' * (level.concurrency > 1)}"


def sent(result: BenchResult) -> str:
    """Say what was sent."""
    workload = result.workload
    how = "in this process" if result.offline else f"{workload.texts_per_request} a request"
    return f"{workload.source}, {how}"


def errors(kinds: dict[str, int]) -> str:
    """List errors by kind, the most frequent first."""
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind}: {count:,}" for kind, count in ranked) or NO_ERRORS


def _level_row(level: Level) -> tuple[str, ...]:
    longest = "-" if level.latency_ms is None else ms(level.latency_ms.max)
    return (
        f"{level.concurrency}",
        f"{level.texts_per_s:,.0f}",
        f"{level.requests_per_s:,.0f}",
        *_percentiles(level.latency_ms),
        longest,
        errors(level.errors),
    )


def _offline_row(level: OfflineLevel) -> tuple[str, ...]:
    rate = f"{level.texts_per_s:,.0f}"
    return (level.stage, f"{level.batch}", rate, *_percentiles(level.latency_ms))


def _percentiles(latency: Latency | None) -> tuple[str, ...]:
    if latency is None:
        return ("-",) * 4
    return tuple(ms(value) for value in (latency.p50, latency.p90, latency.p95, latency.p99))
