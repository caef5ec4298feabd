"""Stored results of training runs: accuracy and imports."""

from statistics import mean
from typing import Literal

from pydantic import BaseModel

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record

PIPEWORK = "pipework"  # its name in the `peer` fields of stored results


class TrainingResult(Record):
    """Scores of trained models: `values` of `metric` on `rows` rows in percent, one per seed.

    `floors` are the scores of baselines on the same rows, in percent, by name. `minutes` is the
    mean time of a training run; `commands` reproduce it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["training"] = "training"
    dataset: str
    metric: str
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    rows: int
    minutes: float
    settings: dict[str, str | int | float | bool | None]
    floors: dict[str, float]
    commands: tuple[str, ...]
    provenance: Provenance

    @property
    def value(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)


class ImportCheck(Record):
    """A step of an import and its check.

    Attributes:
        family: the encoder family.
        source: the kind of source.
        step: save (by another library), import, padded or packed (the export), or serve.
        max_abs: the largest difference of a logit, or of a score for serve; None after an error.
        reason: the error.
    """

    family: str
    source: str
    step: str
    max_abs: float | None
    reason: str | None


class ImportsResult(Record):
    """The imports of each family from each kind of source."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["imports"] = "imports"
    checks: tuple[ImportCheck, ...]
    command: tuple[str, ...]
    provenance: Provenance


def import_lines(
    result: ImportsResult,
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]:
    """Return head and rows of the table, and the reasons of failures in the order of their numbers.

    A row is a family, a column a kind of source. A cell is the largest difference of all steps.
    """
    sources = tuple(dict.fromkeys(check.source for check in result.checks))
    reasons = [*dict.fromkeys(check.reason for check in result.checks if check.reason)]
    cells: dict[tuple[str, str], str] = {}
    for check in sorted(result.checks, key=lambda check: check.max_abs or 0):
        number = f"[{reasons.index(check.reason) + 1}]" if check.reason else ""
        cell = number or f"{check.max_abs:.0e}"
        if number or not cells.get((check.family, check.source), "").startswith("["):
            cells[check.family, check.source] = cell
    rows = [
        (family, *(cells.get((family, source), "-") for source in sources))
        for family in dict.fromkeys(check.family for check in result.checks)
    ]
    return ("family", *sources), rows, reasons


def recorded_settings(settings: BaseModel) -> dict[str, str | int | float | bool | None]:
    """Return the settings that are not None as JSON scalars; lists become comma-separated text."""
    values = settings.model_dump(mode="json", exclude_none=True)
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in values.items()
    }
