"""Stored experiments: what each of several ways to train gives, over seeds."""

from collections.abc import Iterator
from statistics import mean
from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record

Setting = str | int | float | bool | None


class Difference(Record):
    """How much better an arm scores than another, in points: the mean over pairs of like seeds.

    `low` and `high` bound it with 95 % confidence, by Student's t over the seeds.
    """

    against: str
    mean: float
    low: float
    high: float


class Arm(Record):
    """One way to train: scores in percent by seed, of the checkpoint that dev has chosen.

    `minutes` is the mean time of one training, `minutes_before` that of what it builds on:
    pretraining, or all its teachers. `difference` is on the split that tests.
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
    """Arms beside each other; `floors` are scores of simple methods on the test rows, in percent.

    Everything was chosen on dev: test was looked at once, when all arms were trained. So many
    trainings shared the machine as `at_once` says: the minutes are of a part of it.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["experiment"] = "experiment"
    experiment: Literal["scratch", "domain"]
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
        """The single model that is best on dev: its arm, and its place among the seeds."""
        places = ((arm, place) for arm in self.arms for place in range(len(arm.seeds)))
        return max(places, key=lambda one: one[0].dev[one[1]])


HEAD = ("step", "dev", "test", "difference, points", "parameters", "minutes")


def experiment_rows(result: ExperimentResult) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each arm, and of each simple method."""
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
    """Return what was measured, and the best single model, in words."""
    arm, place = result.best
    return (
        f"**{result.dataset}**: {result.metric} in percent on {result.test_rows:,} test rows, "
        f"{result.train_rows:,} labelled train rows, mean ± standard deviation over "
        f"{len(result.arms[0].seeds)} seeds, differences with 95 % intervals. The single model "
        f"that is best on dev ({arm.name}, seed {arm.seeds[place]}, {arm.dev[place]:.2f}) has "
        f"**{arm.test[place]:.2f}** on test."
    )


def _scores(values: tuple[float, ...]) -> str:
    return f"{mean(values):.2f}{_spread(values)}"


def _spread(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return ""
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return f" ± {variance**0.5:.2f}"


def _difference(given: Difference | None) -> str:
    if given is None:
        return ""
    return f"{given.mean:+.2f} ({given.low:+.2f} to {given.high:+.2f}) against {given.against}"
