"""Stored results of training runs."""

from collections.abc import Iterator, Sequence
from statistics import mean, stdev
from typing import ClassVar, Literal

from pydantic import BaseModel

from pipework.benchmarks.studies.records.study_result import StudyResult

Setting = str | int | float | bool | None
PIPEWORK = "pipework"  # its name in the `peer` fields of stored results


class TrainingResult(StudyResult):
    """Scores of trained models: `values` of `metric` on `rows` rows in percent, one per seed.

    `floors` are the scores of baselines on the same rows, in percent, by name. `minutes` is the
    mean time of a training run; `commands` reproduce it. `calibration_errors` are the expected
    calibration errors on these rows, and `uncalibrated_errors` those before the calibration.
    """

    TABLE: ClassVar[str] = "accuracy"
    HEAD: ClassVar[tuple[str, ...]] = (
        "data",
        "metric",
        "pipework",
        "baselines on the same rows",
        "calibration error",
        "rows",
        "minutes",
    )
    kind: Literal["training"] = "training"
    dataset: str
    metric: str
    values: tuple[float, ...]
    seeds: tuple[int, ...]
    rows: int
    minutes: float
    settings: dict[str, Setting]
    floors: dict[str, float]
    commands: tuple[str, ...]
    calibration_errors: tuple[float, ...] = ()
    uncalibrated_errors: tuple[float, ...] = ()

    @property
    def value(self) -> float:
        """The mean over the seeds."""
        return mean(self.values)

    def table_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the row of the result."""
        seeds = f" ({len(self.values)} seeds)" if len(self.values) > 1 else ""
        yield (
            self.dataset,
            self.metric,
            f"**{self.value:.2f}**{plus_minus(self.values)}{seeds}",
            ", ".join(f"{name} {value:.2f}" for name, value in self.floors.items()),
            self._calibration(),
            f"{self.rows:,}",
            f"{self.minutes:.0f}" if self.minutes >= 1 else f"{self.minutes:.1f}",
        )

    def _calibration(self) -> str:
        errors = {"": self.calibration_errors, "before: ": self.uncalibrated_errors}
        return ", ".join(f"{name}{mean(found):.3f}" for name, found in errors.items() if found)


def plus_minus(values: Sequence[float]) -> str:
    """Return the standard deviation as " ± 0.12", or "" for a single value."""
    return f" ± {stdev(values):.2f}" if len(values) > 1 else ""


def recorded_settings(settings: BaseModel) -> dict[str, Setting]:
    """Return the settings that are not None as JSON scalars; lists become comma-separated text."""
    values = settings.model_dump(mode="json", exclude_none=True)
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in values.items()
    }
