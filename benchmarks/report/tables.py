"""The figures of a result as words: what the terminal, the page and the README all show."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as Drawn

from pipework.benchmarks.load.offline import TOKENIZING
from pipework.benchmarks.results_schema.level import Latency, Level, WorkloadSummary
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel

# From the first level within this part of the peak on, more clients only wait longer.
NEAR_PEAK = 0.95
OFFLINE_HEAD = ("stage", "texts a call", "texts/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms")
PERCENTILES = ("p50", "p90", "p95", "p99", "p999")
LATENCY_HEAD = ("p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
ERRORS, LATE = "errors", "late"
NO_ERRORS = "0"
NOTHING = "-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Figures as words; every row is as long as the head."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(result: BenchResult) -> list[Table]:
    """Return the tables of a result: of closed and open loop, of the server, or of the engines."""
    if result.offline:
        counted = any(level.tokens_per_s is not None for level in result.offline)
        rows = tuple(
            (*_offline_row(level), *([_number(level.tokens_per_s)] if counted else ()))
            for level in result.offline
        )
        head = (*OFFLINE_HEAD, *(["tokens/s"] if counted else ()))
        return [Table(title="In this process", head=head, rows=rows)]
    found = (_closed(closed(result)), _open(opened(result)), _server(result.levels))
    return [table for table in found if table.rows]


def closed(result: BenchResult) -> list[Level]:
    """Return the levels of clients that wait for their answers."""
    return [level for level in result.levels if level.concurrency is not None]


def opened(result: BenchResult) -> list[Level]:
    """Return the levels of requests that came at a rate, by rate."""
    levels = [level for level in result.levels if level.rate is not None]
    return sorted(levels, key=lambda level: level.load)


def best(levels: Sequence[Level]) -> Level:
    """Return the level with the fewest clients among those within 5 % of the peak throughput."""
    peak = max(level.texts_per_s for level in levels)
    near = (level for level in levels if level.texts_per_s >= NEAR_PEAK * peak)
    return min(near, key=lambda level: level.load)


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


def rate(value: float) -> str:
    """Write a rate with about three digits, and without those that are 0 after the point."""
    written = ms(value)
    return written.rstrip("0").rstrip(".") if "." in written else written


def clients(level: Level) -> str:
    """Say with how many clients a level ran, or at which rate."""
    if level.rate is not None:
        return f"{rate(level.rate)} requests/s"
    return f"{level.load:g} client{'s' * (level.load > 1)}"


def sent(result: BenchResult) -> str:
    """Say what was sent."""
    if result.offline:
        return f"{result.workload.source}, in this process"
    return sent_line(result.workload)


def sent_line(workload: WorkloadSummary) -> str:
    """Say what a server was sent."""
    count = workload.texts_per_request
    return f"{workload.source}, {f'{count} a request' if count else 'as recorded'}"


def errors(kinds: dict[str, int]) -> str:
    """List errors by kind, the most frequent first."""
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind}: {count:,}" for kind, count in ranked) or NO_ERRORS


def _closed(levels: Sequence[Level]) -> Table:
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
    return Table(title="Closed loop: clients that wait for their answers", head=head, rows=rows)


def _open(levels: Sequence[Level]) -> Table:
    head = ("requests/s", "texts/s in time", *LATENCY_HEAD, LATE, ERRORS)
    rows = tuple(
        (
            rate(level.load),
            rate(level.in_time),
            *_latencies(level.latency_ms),
            f"{level.late:,}",
            errors(level.errors),
        )
        for level in levels
    )
    title = "Open loop: requests at a rate, timed from when they were to be sent"
    return Table(title=title, head=head, rows=rows)


def _server(levels: Sequence[Level]) -> Table:
    """Return what the server used and where its time went, in columns that any level fills."""
    columns: dict[str, Callable[[Level], str]] = {
        "cores": lambda one: f"{one.server.cores:.2f}" if one.server else NOTHING,
        "peak MiB": lambda one: f"{one.server.peak_mib:,.0f}" if one.server else NOTHING,
        "GPU": lambda one: _share(one.server.gpu_share if one.server else None),
        "GPU MiB": lambda one: _number(one.server.gpu_mib if one.server else None),
        "tokens/s": lambda one: _number(one.tokens_per_s),
        "per million": lambda one: NOTHING if (cost := one.cost_per_million) is None else ms(cost),
    }
    columns |= {f"{stage} ms": _stage(stage) for stage in stages(levels)}
    filled = {
        name: column
        for name, column in columns.items()
        if any(column(level) != NOTHING for level in levels)
    }
    rows = tuple(
        (clients(level), *(column(level) for column in filled.values()))
        for level in levels
        if filled
    )
    return Table(title="The server, and where its time went", head=("at", *filled), rows=rows)


def stages(levels: Sequence[Level]) -> list[str]:
    """Return the names of the server's stages, in its order."""
    return list(dict.fromkeys(name for level in levels for name in level.stages_ms))


def _stage(name: str) -> Callable[[Level], str]:
    return lambda level: ms(level.stages_ms[name]) if name in level.stages_ms else NOTHING


def _offline_row(level: OfflineLevel) -> tuple[str, ...]:
    latency = level.latency_ms
    times = (ms(value) for value in (latency.p50, latency.p90, latency.p95, latency.p99))
    return (level.stage, f"{level.batch}", rate(level.texts_per_s), *times)


def _latencies(latency: Latency | None) -> tuple[str, ...]:
    if latency is None:
        return (NOTHING,) * len(LATENCY_HEAD)
    values = (*(getattr(latency, name) for name in PERCENTILES), latency.max)
    return tuple(NOTHING if value is None else ms(value) for value in values)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


WIDTH = 110


def drawn(title: str, tables: Iterable[Table], lines: Sequence[str]) -> str:
    """Return tables under a title, and lines below them, at most 110 columns wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, color_system=None, markup=False, highlight=False)
    console.print(title)
    for table in tables:
        shown = Drawn(*table.head, title=table.title, title_justify="left")
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for line in lines:
        console.print(line)
    return stream.getvalue()
