"""Stored results of studies that repeat an experiment for each row and each column of a table."""

from collections.abc import Iterator, Sequence
from typing import Literal

from pipework.benchmarks.results_schema.provenance import Provenance
from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.record import Record
from pipework.run_folder.engine_record import Layout, Variant


class Cell(Record):
    """An experiment: a difference, a text, or the reason of a failure.

    Attributes:
        row: the names of its row, for example family and head.
        column: the name of its column: an engine, or a kind of source.
        packed: whether it is the packed engine of its column.
        value: the largest difference of a logit or a score.
        text: the outcome, if it is neither a difference nor a failure.
        reason: the error of a failure, or the limits that a refused engine exceeded.
    """

    row: tuple[str, ...]
    column: str
    packed: bool = False
    value: float | None = None
    text: str = ""
    reason: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the table shows the number of its reason."""
        return self.reason is not None and not self.text


def column_of(variant: Variant) -> tuple[str, bool]:
    """Return the column of an engine, and whether it is the packed engine of the column."""
    label = variant.label.removesuffix(f"-{Layout.PACKED}")
    return label.replace("-", " "), variant.layout is Layout.PACKED


class GridResult(StudyResult):
    """The cells of a table, row by row; a padded and a packed engine share their place.

    `names` are the names of the columns of row names; `weights` names the models. `earlier` is the
    provenance of cells that were measured at other commits.
    """

    kind: Literal["grid"] = "grid"
    experiment: Literal["matrix", "imports", "faults"]
    names: tuple[str, ...]
    weights: str = ""
    cells: tuple[Cell, ...]
    command: tuple[str, ...] = ()
    earlier: tuple[Provenance, ...] = ()

    @property
    def table(self) -> str:
        """The name of the experiment."""
        return self.experiment

    def head(self) -> tuple[str, ...]:
        """Return the names of the row names, and the columns."""
        return (*self.names, *self._columns())

    def table_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each combination of row names."""
        reasons = self._reasons()
        places: dict[tuple[str, ...], list[str]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.packed):
            places.setdefault((*cell.row, cell.column), []).append(_shown(cell, reasons))
        for row in dict.fromkeys(cell.row for cell in self.cells):
            texts = (places.get((*row, column), ["-"]) for column in self._columns())
            yield (*row, *(" · ".join(dict.fromkeys(both)) for both in texts))

    def title(self) -> str:
        """Return the models, and how many cells passed parity, were only built, and failed."""
        if not self.weights:
            return ""
        passed = sum(cell.value is not None for cell in self.cells)
        failed = sum(cell.failed for cell in self.cells)
        built = len(self.cells) - passed - failed
        counts = f"{passed:,} passed parity, {built:,} built but not run, {failed:,} failed"
        return f"**{self.weights[0].upper()}{self.weights[1:]}**: {counts}."

    def notes(self) -> list[str]:
        """Return the numbered reasons of failures."""
        return [f"[{number}] {reason}" for number, reason in enumerate(self._reasons(), 1)]

    def origins(self) -> tuple[Provenance, ...]:
        """Return the provenance of all cells."""
        return (self.provenance, *self.earlier)

    def _columns(self) -> Sequence[str]:
        return tuple(dict.fromkeys(cell.column for cell in self.cells))

    def _reasons(self) -> Sequence[str]:
        return tuple(
            dict.fromkeys(cell.reason for cell in self.cells if cell.failed and cell.reason)
        )


def _shown(cell: Cell, reasons: Sequence[str]) -> str:
    if cell.failed and cell.reason:
        return f"[{reasons.index(cell.reason) + 1}]"
    return cell.text or f"{cell.value:.0e}"
