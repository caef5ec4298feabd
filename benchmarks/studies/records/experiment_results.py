"""Stored results of experiments: training variants over seeds."""

from collections.abc import Iterator
from statistics import mean
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record

Setting = str | int | float | bool | None


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


class ExperimentResult(Record):
    """The arms of an experiment; `floors` are baseline scores on the test rows, in percent.

    All choices were made on dev; test was evaluated once, after all arms were trained. `at_once`
    training runs shared the machine, so the minutes are those of a share of it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
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
    provenance: Provenance

    @property
    def best(self) -> tuple[Arm, int]:
        """The model with the best dev score: its arm and the index of its seed."""
        models = ((arm, index) for arm in self.arms for index in range(len(arm.seeds)))
        return max(models, key=lambda model: model[0].dev[model[1]])


HEAD = ("step", "dev", "test", "difference, points", "parameters", "minutes")


def experiment_rows(result: ExperimentResult) -> Iterator[tuple[str, ...]]:
    """Yield one table row per arm and one per baseline."""
    for arm in result.arms:
        before = f" + {arm.minutes_before:.0f} before" if arm.minutes_before else ""
        yield (
            arm.name,
            _scores(arm.dev),
            f"**{mean(arm.test):.2f}**{_spread(arm.test)}",
            _difference(arm.difference),
            f"{arm.parameters / 1e6:.1f} M",
            f"{arm.minutes:.0f}{before}",
        )
    for name, value in result.floors.items():
        yield (name, "", f"{value:.2f}", "", "", "")


def experiment_summary(result: ExperimentResult) -> str:
    """Return a paragraph with the experiment's data and its best single model."""
    arm, index = result.best
    return (
        f"**{result.dataset}**: {result.metric} in percent on {result.test_rows:,} test rows, "
        f"{result.train_rows:,} labelled train rows, mean ± standard deviation over "
        f"{len(result.arms[0].seeds)} seeds, differences with 95 % intervals. The single model "
        f"with the best dev score ({arm.name}, seed {arm.seeds[index]}, {arm.dev[index]:.2f}) has "
        f"**{arm.test[index]:.2f}** on test."
    )


def _scores(values: tuple[float, ...]) -> str:
    return f"{mean(values):.2f}{_spread(values)}"


def _spread(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return ""
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return f" ± {variance**0.5:.2f}"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    interval = f"({difference.low:+.2f} to {difference.high:+.2f})"
    return f"{difference.mean:+.2f} {interval} against {difference.against}"
