"""Results of training runs: accuracy, families, and other trainers on the same rows."""

from statistics import mean, median
from typing import Literal

from pydantic import BaseModel

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record

PIPEWORK = "pipework"  # its name among the competitors of a comparison


class TrainingResult(Record):
    """How good trained models are: `values` of `metric` on `rows` rows, in percent, a seed each.

    `floors` are what simple methods reach on the same rows, in percent, by name. `minutes` is
    the mean time of a training; `commands` repeat it.
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
    """A family with a head: after how many steps it answers the rows rightly, None for never."""

    family: str
    head: str
    steps: int | None


class FamiliesResult(Record):
    """Which families learn with which heads: each learned the same `rows` rows.

    Results of before the command was stored have none.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["families"] = "families"
    rows: int
    fits: tuple[Fit, ...]
    command: tuple[str, ...] = ()
    provenance: Provenance


class PeerRun(Record):
    """One training, in a process of its own.

    `examples_per_s` is of training alone; `wall_s` is from the start of the process to its end.
    `score` is the best on dev of all epochs, in percent.
    """

    contender: str
    seed: int
    examples_per_s: float
    wall_s: float
    peak_memory_mib: float
    score: float


class PhaseTimes(Record):
    """Seconds of a training run by phase; together they are the whole loop."""

    seconds: dict[str, float]

    def shares(self) -> dict[str, float]:
        """Return the phases as shares of the whole."""
        whole = sum(self.seconds.values())
        return {phase: seconds / whole for phase, seconds in self.seconds.items()}


class PeerTrainingResult(Record):
    """pipework beside others: the same rows, hyperparameters and seeds, one after the other.

    `peer_versions` are of the environment of the others; `phases` are of pipework.
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
    def contenders(self) -> tuple[str, ...]:
        """Who ran, in the order of the first seed."""
        return tuple(dict.fromkeys(run.contender for run in self.runs))

    def of(self, contender: str) -> tuple[PeerRun, ...]:
        """Return the runs of one contender, by seed."""
        mine = (run for run in self.runs if run.contender == contender)
        return tuple(sorted(mine, key=lambda run: run.seed))

    def faster_than(self, contender: str) -> float:
        """Return how many times the others' rate pipework's is: the median over the seeds."""
        pairs = zip(self.of(PIPEWORK), self.of(contender), strict=True)
        return median(own.examples_per_s / other.examples_per_s for own, other in pairs)


def plain(settings: BaseModel) -> dict[str, str | int | float | bool | None]:
    """Return settings as a result keeps them: what is set, lists as text."""
    given = settings.model_dump(mode="json", exclude_none=True)
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in given.items()
    }
