"""The tables of README.md, RESULTS.md and MATRIX.md."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.benchmarks.studies.documents.summary_table import HEAD as SUMMARY_HEAD
from pipework.benchmarks.studies.documents.summary_table import summary_rows
from pipework.benchmarks.studies.records.stored_results import StoredResult
from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.progress import counted

Results = Sequence[StoredResult]
Rows = Iterable[Sequence[str]]
Table = Callable[[Results], str]
SERVING_HEAD = (
    *("model", "texts per request", "clients", "texts/s"),
    *("p50 ms", "p95 ms", "p99 ms", "errors"),
)
STUDIES = (
    *("accuracy", "bulk", "engines", "roofline", "imports"),
    *("matrix", "faults", "peers_serving", "scratch", "cascades"),
)
OFFLINE_HEAD = ("model", "stage", "texts per call", "texts/s", "p50 ms", "p99 ms")


def markdown(head: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table; a `|` in a cell is escaped."""
    rule = ["---"] * len(head)
    lines = ([cell.replace("|", "\\|") for cell in row] for row in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def machines(origins: Iterable[Provenance]) -> str:
    """Return the last line of a table: processor, cores and month of all measurements."""
    lines = {
        f"{origin.machine.cpu}, {counted(origin.machine.cores, 'core')}, {origin.created_at:%B %Y}"
        for origin in origins
    }
    return f"\n\nMeasured on {'; '.join(sorted(lines))}." if lines else "\n\nNo results yet."


def study_table(name: str, results: Results) -> str:
    """Return the table of a study; results with a title have a table each."""
    chosen = [
        result for result in results if isinstance(result, StudyResult) and result.table == name
    ]
    titled = [f"{result.title()}\n\n{_with_notes([result])}" for result in chosen if result.title()]
    others = [result for result in chosen if not result.title()]
    parts = [*titled, *([_with_notes(others)] if others else [])]
    return (
        "\n\n".join(parts) + machines(each for result in chosen for each in result.origins())
    ).strip()


def _with_notes(results: Sequence[StudyResult]) -> str:
    rows = [row for result in results for row in result.table_rows()]
    notes = [f"- {note}" for result in results for note in result.notes()]
    return markdown(results[0].head(), rows) + ("\n\n" + "\n".join(notes) if notes else "")


def _bench_table(head: Sequence[str], rows: Callable[[BenchResult], Rows]) -> Table:
    """Return the table of the results of `pipe bench` that have rows."""

    def text(results: Results) -> str:
        benches = [result for result in results if isinstance(result, BenchResult)]
        measured = [result for result in benches if any(True for _ in rows(result))]
        lines = [row for result in measured for row in rows(result)]
        return markdown(head, lines) + machines(result.provenance for result in measured)

    return text


def _serving_rows(result: BenchResult) -> Iterator[tuple[str, ...]]:
    for level in result.levels:
        yield result.model, f"{level.texts_per_request}", f"{level.load:g}", *_level(level)


def _level(level: Level) -> tuple[str, ...]:
    times: tuple[str, ...] = ("-",) * 3
    if level.latency_ms is not None:
        latency = level.latency_ms
        times = tuple(tables.ms(value) for value in (latency.p50, latency.p95, latency.p99))
    return (f"{level.texts_per_s:,.0f}", *times, f"{level.failed:,}")


def offline_rows(result: BenchResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of tokenizing and of the engine with the highest rate, by call size."""
    engines = tables.engines(result)
    fastest = max(engines, key=lambda level: level.texts_per_s).stage if engines else None
    chosen = (level for level in engines if level.stage == fastest)
    for level in (*tables.tokenizing(result), *chosen):
        latency = level.latency_ms
        times = (tables.ms(latency.p50), tables.ms(latency.p99))
        yield result.model, level.stage, f"{level.batch}", f"{level.texts_per_s:,.0f}", *times


TABLES: Mapping[str, Table] = {
    "summary": lambda results: markdown(SUMMARY_HEAD, summary_rows(results)),
    "serving": _bench_table(SERVING_HEAD, _serving_rows),
    "offline": _bench_table(OFFLINE_HEAD, offline_rows),
    **{name: partial(study_table, name) for name in STUDIES},
}
