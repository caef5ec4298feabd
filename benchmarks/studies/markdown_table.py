"""Markdown for tables of stored results."""

from collections.abc import Callable, Iterable, Sequence
from statistics import stdev
from typing import TypeVar

from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.studies.engine_results import MatrixResult
from pipework.benchmarks.studies.stored_results import StoredResult

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
        f"{origin.machine.cpu}, {_cores(origin.machine.cores)}, {origin.created_at:%B %Y}"
        for result in results
        for origin in (result.provenance, *_earlier(result))
    }
    return f"\n\nMeasured on {'; '.join(sorted(lines))}." if lines else "\n\nNo results yet."


def plus_minus(values: Sequence[float]) -> str:
    """Return the standard deviation as " ± 0.12", or "" for a single value."""
    return f" ± {stdev(values):.2f}" if len(values) > 1 else ""


def _earlier(result: StoredResult) -> Sequence[Provenance]:
    return result.earlier if isinstance(result, MatrixResult) else ()


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
