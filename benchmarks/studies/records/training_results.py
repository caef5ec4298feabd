"""Stored results of training runs: accuracy, families, comparison with other trainers."""

from collections.abc import Iterator
from statistics import mean, median
from typing import Literal

from pydantic import BaseModel

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record

PIPEWORK = "pipework"  # its name in the `contender` and `peer` fields of stored results


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


class Fit(Record):
    """The training steps that a family with a head needs to fit the rows; None if it does not."""

    family: str
    head: str
    steps: int | None


class FamiliesResult(Record):
    """Which encoder families fit the same `rows` rows with which heads.

    `command` is empty in results that predate the field.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["families"] = "families"
    rows: int
    fits: tuple[Fit, ...]
    command: tuple[str, ...] = ()
    provenance: Provenance


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


class PeerRun(Record):
    """One training run in a separate process.

    `examples_per_s` counts training only; `wall_s` is the lifetime of the process. `score` is the
    best dev score of all epochs, in percent.
    """

    contender: str
    seed: int
    examples_per_s: float
    wall_s: float
    peak_memory_mib: float
    score: float


class PhaseTimes(Record):
    """Seconds of a training run by phase; the phases add up to the whole loop."""

    seconds: dict[str, float]

    def shares(self) -> dict[str, float]:
        """Return each phase as a share of the total."""
        whole = sum(self.seconds.values())
        return {phase: seconds / whole for phase, seconds in self.seconds.items()}


class PeerTrainingResult(Record):
    """pipework compared with other trainers on the same rows, hyperparameters and seeds.

    `peer_versions` are the package versions in the other trainers' environment; `phases` are
    measured in pipework.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["peer_training"] = "peer_training"
    dataset: str
    metric: str
    train_rows: int
    threads: int
    settings: dict[str, str | int | float | bool | None]
    runs: tuple[PeerRun, ...]
    phases: PhaseTimes
    peer_versions: dict[str, str]
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def competitors(self) -> tuple[str, ...]:
        """The compared trainers in the order of the first seed."""
        return tuple(dict.fromkeys(run.contender for run in self.runs))

    def of(self, competitor: str) -> tuple[PeerRun, ...]:
        """Return the runs of one trainer, sorted by seed."""
        runs = (run for run in self.runs if run.contender == competitor)
        return tuple(sorted(runs, key=lambda run: run.seed))

    def speedup_over(self, competitor: str) -> float:
        """Return pipework's examples/s divided by the competitor's: the median over the seeds."""
        pairs = zip(self.of(PIPEWORK), self.of(competitor), strict=True)
        return median(own.examples_per_s / other.examples_per_s for own, other in pairs)


def recorded_settings(settings: BaseModel) -> dict[str, str | int | float | bool | None]:
    """Return the settings that are not None as JSON scalars; lists become comma-separated text."""
    values = settings.model_dump(mode="json", exclude_none=True)
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in values.items()
    }


HEAD = (
    "preset",
    "layers x width",
    "family",
    "parameters",
    "embedding parameters",
    "pretraining, tokens/s",
    "relative to BERT",
)


class PresetSpeed(Record):
    """A preset in one family. `parameters` counts the encoder without heads.

    `tokens_per_s` is the pretraining rate of each round (forward, backward, optimizer step).
    """

    preset: str
    family: str
    layers: int
    width: int
    parameters: int
    embeddings: int
    tokens_per_s: tuple[float, ...]

    @property
    def speed(self) -> float:
        """The median tokens/s of the rounds."""
        return median(self.tokens_per_s)


class PresetsResult(Record):
    """Presets in both families, measured in turns, round by round, on the same rows."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["presets"] = "presets"
    vocabulary: int
    row_tokens: int
    rows_per_step: int
    steps_per_round: int
    precision: str
    presets: tuple[PresetSpeed, ...]
    command: tuple[str, ...]
    provenance: Provenance


def preset_rows(result: PresetsResult) -> Iterator[tuple[str, ...]]:
    """Yield one table row per preset and family."""
    bert = {preset.preset: preset.speed for preset in reversed(result.presets)}
    for preset in result.presets:
        yield (
            preset.preset,
            f"{preset.layers} x {preset.width}",
            preset.family.upper(),
            f"{preset.parameters / 1e6:.2f} M",
            f"{preset.embeddings / 1e6:.2f} M",
            f"{preset.speed:,.0f}",
            f"{preset.speed / bert[preset.preset]:.2f}",
        )
