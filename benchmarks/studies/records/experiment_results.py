"""Stored results of experiments: training variants over seeds."""

from collections.abc import Iterator
from statistics import mean
from typing import ClassVar, Literal

from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.benchmarks.studies.records.training_results import Setting, plus_minus
from pipework.record import Record


class Difference(Record):
    """The mean score difference between two arms in points, paired by seed.

    `low` and `high` bound it with 95 % confidence by Student's t over the seeds.
    """

    against: str
    mean: float
    low: float
    high: float


class Arm(Record):
    """One training variant: scores in percent by seed, of the checkpoint with the best dev score.

    `minutes` is the mean time of one training run, `minutes_before` the time of the runs that it
    depends on: pretraining, or all teachers. `difference` is measured on the test split.
    """

    name: str
    seeds: tuple[int, ...]
    dev: tuple[float, ...]
    test: tuple[float, ...]
    minutes: float
    minutes_before: float
    parameters: int
    difference: Difference | None
    settings: dict[str, Setting]


class ExperimentResult(StudyResult):
    """The arms of an experiment; `floors` are baseline scores on the test rows, in percent.

    All choices were made on dev; test was evaluated once, after all arms were trained. `at_once`
    training runs shared the machine, so the minutes are those of a share of it.
    """

    TABLE: ClassVar[str] = "scratch"
    HEAD: ClassVar[tuple[str, ...]] = (
        "step",
        "dev",
        "test",
        "difference, points",
        "parameters",
        "minutes",
    )
    kind: Literal["experiment"] = "experiment"
    experiment: Literal["scratch"]
    dataset: str
    metric: str
    train_rows: int
    test_rows: int
    arms: tuple[Arm, ...]
    floors: dict[str, float]
    at_once: int = 1
    command: tuple[str, ...]

    @property
    def best(self) -> tuple[Arm, int]:
        """The model with the best dev score: its arm and the index of its seed."""
        models = ((arm, index) for arm in self.arms for index in range(len(arm.seeds)))
        return max(models, key=lambda model: model[0].dev[model[1]])

    def table_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each arm and for each baseline."""
        for arm in self.arms:
            before = f" + {arm.minutes_before:.0f} before" if arm.minutes_before else ""
            yield (
                arm.name,
                f"{mean(arm.dev):.2f}{plus_minus(arm.dev)}",
                f"**{mean(arm.test):.2f}**{plus_minus(arm.test)}",
                _difference(arm.difference),
                f"{arm.parameters / 1e6:.1f} M",
                f"{arm.minutes:.0f}{before}",
            )
        for name, value in self.floors.items():
            yield (name, "", f"{value:.2f}", "", "", "")

    def title(self) -> str:
        """Return a paragraph with the experiment's data and its best single model."""
        arm, index = self.best
        return (
            f"**{self.dataset}**: {self.metric} in percent on {self.test_rows:,} test rows, "
            f"{self.train_rows:,} labelled train rows, mean ± standard deviation over "
            f"{len(self.arms[0].seeds)} seeds, differences with 95 % intervals. The single model "
            f"with the best dev score ({arm.name}, seed {arm.seeds[index]}, {arm.dev[index]:.2f}) "
            f"has **{arm.test[index]:.2f}** on test."
        )


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    interval = f"({difference.low:+.2f} to {difference.high:+.2f})"
    return f"{difference.mean:+.2f} {interval} against {difference.against}"
