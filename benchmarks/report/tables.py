"""Text tables of a result, shared by the terminal, the HTML page and the README."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipework.benchmarks.load.offline import TOKENIZING
from pipework.benchmarks.results_schema.level import Latency, Level, WorkloadSummary
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel

OFFLINE_HEAD = ("stage", "texts per call", "texts/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms")
PERCENTILES = ("p50", "p90", "p95", "p99", "p999")
LATENCY_HEAD = ("p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
ERRORS, LATE = "errors", "late"
NO_ERRORS = "0"
NO_VALUE = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTable:
    """Table of strings; every row is as long as the head. `kind` is its class on a page."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kind: str = ""


def tables(result: BenchResult) -> list[TextTable]:
    """Return the non-empty tables: closed loop, open loop and server, or offline levels."""
    if result.offline:
        has_tokens = any(level.tokens_per_s is not None for level in result.offline)
        rows = tuple(
            (*_offline_row(level), *([_number(level.tokens_per_s)] if has_tokens else ()))
            for level in result.offline
        )
        head = (*OFFLINE_HEAD, *(["tokens/s"] if has_tokens else ()))
        return [TextTable(title="Offline: in this process", head=head, rows=rows)]
    candidates = (
        _closed_loop_table(closed_loop_levels(result)),
        _open_loop_table(open_loop_levels(result)),
        _server_table(result.levels),
    )
    return [table for table in candidates if table.rows]


def closed_loop_levels(result: BenchResult) -> list[Level]:
    """Return the closed-loop levels."""
    return [level for level in result.levels if level.concurrency is not None]


def open_loop_levels(result: BenchResult) -> list[Level]:
    """Return the open-loop levels, sorted by rate."""
    levels = [level for level in result.levels if level.rate is not None]
    return sorted(levels, key=lambda level: level.load)


def engines(result: BenchResult) -> list[OfflineLevel]:
    """Return the offline levels of engines."""
    return [level for level in result.offline if level.stage != TOKENIZING]


def tokenizing(result: BenchResult) -> list[OfflineLevel]:
    """Return the offline levels of the tokenizer."""
    return [level for level in result.offline if level.stage == TOKENIZING]


def ms(value: float) -> str:
    """Format milliseconds with about three digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2  # noqa: PLR2004
    return f"{value:,.{digits}f}"


def rate(value: float) -> str:
    """Format a rate with about three digits, without trailing zeros after the decimal point."""
    text = ms(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def load_label(level: Level) -> str:
    """Describe the load of a level: its number of clients or its rate."""
    if level.rate is not None:
        return f"{rate(level.rate)} requests/s"
    return f"{level.load:g} client{'s' * (level.load > 1)}"


def workload_line(result: BenchResult) -> str:
    """Describe the workload of a result."""
    if result.offline:
        return f"{result.workload.source}, in this process"
    return served_workload_line(result.workload)


def served_workload_line(workload: WorkloadSummary) -> str:
    """Describe the workload sent to a server."""
    count = workload.texts_per_request
    return f"{workload.source}, {f'{count} per request' if count else 'as recorded'}"


def errors(kinds: dict[str, int]) -> str:
    """List the errors by kind, most frequent first."""
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind}: {count:,}" for kind, count in ranked) or NO_ERRORS


def _closed_loop_table(levels: Sequence[Level]) -> TextTable:
    head = ("clients", "texts/s", "requests/s", *LATENCY_HEAD, ERRORS)
    rows = tuple(
        (
            f"{level.load:g}",
            rate(level.texts_per_s),
            rate(level.requests_per_s),
            *_latencies(level.latency_ms),
            errors(level.errors),
        )
        for level in levels
    )
    return TextTable(title="Closed loop: each client waits for its response", head=head, rows=rows)


def _open_loop_table(levels: Sequence[Level]) -> TextTable:
    head = ("requests/s", "texts/s in time", *LATENCY_HEAD, LATE, ERRORS)
    rows = tuple(
        (
            rate(level.load),
            rate(level.texts_per_s),
            *_latencies(level.latency_ms),
            f"{level.late:,}",
            errors(level.errors),
        )
        for level in levels
    )
    title = "Open loop: requests at a fixed rate, latency from the intended send time"
    return TextTable(title=title, head=head, rows=rows)


def _server_table(levels: Sequence[Level]) -> TextTable:
    """Return resource use and costs; columns without any value are left out."""
    columns: dict[str, Callable[[Level], str]] = {
        "cores": lambda level: f"{level.server.cores:.2f}" if level.server else NO_VALUE,
        "peak MiB": lambda level: f"{level.server.peak_mib:,.0f}" if level.server else NO_VALUE,
        "per million": lambda level: (
            NO_VALUE if (cost := level.cost_per_million) is None else ms(cost)
        ),
    }
    filled = {
        name: column
        for name, column in columns.items()
        if any(column(level) != NO_VALUE for level in levels)
    }
    rows = tuple(
        (load_label(level), *(column(level) for column in filled.values()))
        for level in levels
        if filled
    )
    return TextTable(title="Server", head=("at", *filled), rows=rows)


def _offline_row(level: OfflineLevel) -> tuple[str, ...]:
    latency = level.latency_ms
    times = (ms(value) for value in (latency.p50, latency.p90, latency.p95, latency.p99))
    return (level.stage, f"{level.batch}", rate(level.texts_per_s), *times)


def _latencies(latency: Latency | None) -> tuple[str, ...]:
    if latency is None:
        return (NO_VALUE,) * len(LATENCY_HEAD)
    values = (*(getattr(latency, name) for name in PERCENTILES), latency.max)
    return tuple(NO_VALUE if value is None else ms(value) for value in values)


def _number(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.0f}"
