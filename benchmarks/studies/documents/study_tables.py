"""The tables of README.md, RESULTS.md and MATRIX.md, one function per table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import stdev
from typing import Any, TypeVar

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.benchmarks.studies.documents.summary_table import HEAD as SUMMARY_HEAD
from pipework.benchmarks.studies.documents.summary_table import summary_rows
from pipework.benchmarks.studies.records.bulk_results import (
    BULK_HEAD,
    BulkResult,
    bulk_rows,
)
from pipework.benchmarks.studies.records.engine_results import HEAD as ENGINES_HEAD
from pipework.benchmarks.studies.records.engine_results import (
    ROOFLINE_HEAD,
    EnginesResult,
    FaultsResult,
    MatrixResult,
    RooflineResult,
    engine_rows,
    fault_lines,
    matrix_lines,
    roofline_rows,
    summary,
)
from pipework.benchmarks.studies.records.experiment_results import HEAD as EXPERIMENT_HEAD
from pipework.benchmarks.studies.records.experiment_results import (
    ExperimentResult,
    experiment_rows,
    experiment_summary,
)
from pipework.benchmarks.studies.records.peer_serving_results import HEAD as PEER_HEAD
from pipework.benchmarks.studies.records.peer_serving_results import (
    PeerServingResult,
    peer_notes,
    peer_rows,
)
from pipework.benchmarks.studies.records.stored_results import StoredResult
from pipework.benchmarks.studies.records.training_results import (
    ImportsResult,
    TrainingResult,
    import_lines,
)
from pipework.progress import counted

Kind = TypeVar("Kind", bound=StoredResult)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a `|` in a cell is escaped."""
    rule = ["---"] * len(head)
    lines = ([cell.replace("|", "\\|") for cell in row] for row in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def table_of(
    results: Sequence[Kind],
    head: Sequence[str],
    rows: Callable[[Kind], Iterable[Sequence[str]]],
) -> str:
    """Return one table with the rows of each result, followed by the machines."""
    return markdown(head, (row for result in results for row in rows(result))) + machines(results)


def machines(results: Sequence[StoredResult]) -> str:
    """Return the last line of a table: processor, cores and month of all measurements."""
    lines = {
        f"{origin.machine.cpu}, {counted(origin.machine.cores, 'core')}, {origin.created_at:%B %Y}"
        for result in results
        for origin in (result.provenance, *_earlier(result))
    }
    return f"\n\nMeasured on {'; '.join(sorted(lines))}." if lines else "\n\nNo results yet."


def plus_minus(values: Sequence[float]) -> str:
    """Return the standard deviation as " ± 0.12", or "" for a single value."""
    return f" ± {stdev(values):.2f}" if len(values) > 1 else ""


def _earlier(result: StoredResult) -> Sequence[Provenance]:
    return result.earlier if isinstance(result, MatrixResult) else ()


Results = Sequence[StoredResult]


class TableName(StrEnum):
    """The names of the tables, as their markers contain them."""

    SUMMARY = "summary"
    ACCURACY = "accuracy"
    SERVING = "serving"
    BULK = "bulk"
    OFFLINE = "offline"
    ENGINES = "engines"
    ROOFLINE = "roofline"
    IMPORTS = "imports"
    MATRIX = "matrix"
    FAULTS = "faults"
    PEERS_SERVING = "peers_serving"
    SCRATCH = "scratch"


def table(name: TableName, results: Results) -> str:  # noqa: C901, PLR0911  (one case per table)
    """Return a table as Markdown; results of other kinds are ignored."""
    benches = _of(BenchResult, results)
    match name:
        case TableName.SUMMARY:
            return _summary(results)
        case TableName.ACCURACY:
            return _accuracy(_of(TrainingResult, results))
        case TableName.SERVING:
            return _serving([result for result in benches if result.levels])
        case TableName.OFFLINE:
            return _offline([result for result in benches if result.offline])
        case TableName.IMPORTS:
            return _imports(_of(ImportsResult, results))
        case TableName.MATRIX:
            return _matrix(_of(MatrixResult, results))
        case TableName.FAULTS:
            return _faults(_of(FaultsResult, results))
        case TableName.PEERS_SERVING:
            return _peers_serving(_of(PeerServingResult, results))
        case TableName.SCRATCH:
            return _experiments(_of(ExperimentResult, results))
        case _:
            kind, head, rows = ROWS[name]
            return table_of(_of(kind, results), head, rows)


# Tables in which each result has rows of its own: kind of result, head and rows.
ROWS: Mapping[
    TableName, tuple[type[Any], Sequence[str], Callable[[Any], Iterable[Sequence[str]]]]
] = {
    TableName.BULK: (BulkResult, BULK_HEAD, bulk_rows),
    TableName.ENGINES: (EnginesResult, ENGINES_HEAD, engine_rows),
    TableName.ROOFLINE: (RooflineResult, ROOFLINE_HEAD, roofline_rows),
}


def _of(kind: type[Kind], results: Results) -> list[Kind]:
    return [result for result in results if isinstance(result, kind)]


def _summary(results: Results) -> str:
    return markdown(SUMMARY_HEAD, summary_rows(results))


def _experiments(results: Sequence[ExperimentResult]) -> str:
    parts = (
        f"{experiment_summary(result)}\n\n{markdown(EXPERIMENT_HEAD, experiment_rows(result))}"
        for result in results
    )
    return "\n\n".join(parts) + machines(results)


def _accuracy(results: Sequence[TrainingResult]) -> str:
    head = ("data", "metric", "pipework", "baselines on the same rows", "rows", "minutes")
    return table_of(results, head, _accuracy_rows)


def _accuracy_rows(result: TrainingResult) -> list[tuple[str, ...]]:
    seeds = f" ({len(result.values)} seeds)" if len(result.values) > 1 else ""
    row = (
        result.dataset,
        result.metric,
        f"**{result.value:.2f}**{plus_minus(result.values)}{seeds}",
        ", ".join(f"{name} {value:.2f}" for name, value in result.floors.items()),
        f"{result.rows:,}",
        f"{result.minutes:.0f}" if result.minutes >= 1 else f"{result.minutes:.1f}",
    )
    return [row]


def _serving(results: Sequence[BenchResult]) -> str:
    head = (
        *("model", "texts per request", "clients", "texts/s"),
        *("p50 ms", "p95 ms", "p99 ms", "errors"),
    )
    rows = (
        (result.model, f"{level.texts_per_request}", f"{level.load:g}", *_level(level))
        for result in results
        for level in result.levels
    )
    return markdown(head, rows) + machines(results)


def _level(level: Level) -> tuple[str, ...]:
    times: tuple[str, ...] = ("-",) * 3
    if level.latency_ms is not None:
        latency = level.latency_ms
        times = tuple(tables.ms(value) for value in (latency.p50, latency.p95, latency.p99))
    return (f"{level.texts_per_s:,.0f}", *times, f"{level.failed:,}")


def _offline(results: Sequence[BenchResult]) -> str:
    head = ("model", "stage", "texts per call", "texts/s", "p50 ms", "p99 ms")
    return table_of(results, head, offline_rows)


def offline_rows(result: BenchResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of tokenizing and of the engine with the highest rate, by call size."""
    engines = tables.engines(result)
    fastest = max(engines, key=lambda level: level.texts_per_s).stage if engines else None
    chosen = (level for level in engines if level.stage == fastest)
    for level in (*tables.tokenizing(result), *chosen):
        latency = level.latency_ms
        times = (tables.ms(latency.p50), tables.ms(latency.p99))
        yield result.model, level.stage, f"{level.batch}", f"{level.texts_per_s:,.0f}", *times


def _imports(results: Sequence[ImportsResult]) -> str:
    parts = []
    for result in results:
        head, rows, reasons = import_lines(result)
        parts.append(markdown(head, rows) + _notes(reasons))
    return "\n\n".join(parts) + machines(results)


def _notes(reasons: Sequence[str]) -> str:
    lines = (f"- [{number}] {reason}" for number, reason in enumerate(reasons, 1))
    return "\n\n" + "\n".join(lines) if reasons else ""


def _matrix(results: Sequence[MatrixResult]) -> str:
    parts = []
    for result in results:
        head, rows, reasons = matrix_lines(result)
        title = f"**{result.weights[0].upper()}{result.weights[1:]}**: {summary(result)}."
        parts.append(f"{title}\n\n{markdown(head, rows)}{_notes(reasons)}")
    return "\n\n".join(parts) + machines(results)


def _faults(results: Sequence[FaultsResult]) -> str:
    parts = (markdown(*fault_lines(result)) for result in results)
    return "\n\n".join(parts) + machines(results)


def _peers_serving(results: Sequence[PeerServingResult]) -> str:
    rows = markdown(PEER_HEAD, (row for result in results for row in peer_rows(result)))
    notes = "".join(f"\n- {note}" for result in results for note in peer_notes(result))
    return rows + (f"\n{notes}" if notes else "") + machines(results)
