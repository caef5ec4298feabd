"""Stored results: what was measured, on what, with which versions. Every figure shown is from one.

A result holds no host name and no path of the machine that made it, so that it can be published.
"""

from pathlib import Path
from statistics import mean, median
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from pipework.benchmarks.results_schema.comparison import ComparisonResult
from pipework.benchmarks.results_schema.latency import Latency
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.benchmarks.results_schema.slo import SloResult
from pipework.benchmarks.results_schema.workload import WorkloadSummary
from pipework.benchmarks.studies.agreement_results import AgreementResult
from pipework.benchmarks.studies.engine_results import EnginesResult, MatrixResult
from pipework.benchmarks.studies.experiment_results import ExperimentResult
from pipework.benchmarks.studies.peer_serving_results import PeerServingResult
from pipework.benchmarks.studies.presets_results import PresetsResult
from pipework.benchmarks.studies.roofline_results import RooflineResult
from pipework.benchmarks.studies.serving_results import ServingResult
from pipework.errors import ConfigError, DataError
from pipework.run_folder.files import Record, write_atomically

PIPEWORK = "pipework"  # its name among the contenders of a comparison
GENERATOR_SHARE = 0.7  # of what the generator can do: above that it is in the way


class OfflineLevel(Record):
    """One stage in this process, without a server: `stage` is "tokenizing" or an engine's name.

    Latencies are of one call with `batch` texts. The intervals are as those of `Level`.
    """

    stage: str
    batch: int
    duration_s: float
    calls: int
    texts: int
    texts_per_s: float
    tokens_per_s: float | None = None
    latency_ms: Latency
    interval_ms: dict[str, tuple[float, float]] = Field(default_factory=dict)
    interval_texts_per_s: tuple[float, float] | None = None
    freedom: int | None = None


class BenchResult(Record):
    """What `pipe bench` measured: `levels` against a URL, `offline` in a run folder's engines.

    `generator_limit` is how many requests a second the generator itself sends, measured before
    against something that answers at once. `slo` is the verdict on an objective, whose trials are
    the open-loop levels.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["bench"] = "bench"
    command: tuple[str, ...]
    target: str
    model: str
    provenance: Provenance
    workload: WorkloadSummary
    levels: tuple[Level, ...] = ()
    offline: tuple[OfflineLevel, ...] = ()
    generator_limit: float | None = None
    slo: SloResult | None = None

    def bottleneck(self, level: Level) -> bool:
        """Whether the generator, rather than the server, may have set the throughput of a level."""
        limit = self.generator_limit
        return limit is not None and level.requests_per_s > GENERATOR_SHARE * limit


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


Result = (
    BenchResult
    | TrainingResult
    | FamiliesResult
    | PeerTrainingResult
    | EnginesResult
    | MatrixResult
    | PresetsResult
    | ServingResult
    | RooflineResult
    | PeerServingResult
    | ExperimentResult
    | ComparisonResult
    | AgreementResult
)
STORED: TypeAdapter[Result] = TypeAdapter(Annotated[Result, Field(discriminator="kind")])


def plain(settings: BaseModel) -> dict[str, str | int | float | bool | None]:
    """Return settings as a result keeps them: what is set, lists as text."""
    given = settings.model_dump(mode="json", exclude_none=True)
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in given.items()
    }


def check_writable(path: Path) -> None:
    """Check before a long measurement that its result can be written.

    Raises:
        ConfigError: the folder is missing, or the path is a folder.
    """
    if path.is_dir() or not path.parent.is_dir():
        message = f"{path} cannot be written: expected a file in a folder that exists"
        raise ConfigError(message, f"make the folder first: mkdir -p {path.parent}")


def write_result(path: Path, result: Result) -> None:
    """Write a result as JSON, atomically.

    Raises:
        ConfigError: as `check_writable`.
    """
    check_writable(path)
    write_atomically(path, (result.model_dump_json(indent=2) + "\n").encode())


def read_result(path: Path) -> Result:
    """Read a stored result.

    Raises:
        DataError: the file is missing or not a result of this schema.
    """
    try:
        return STORED.validate_json(path.read_bytes())
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"{path} is not a result of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        raise DataError(message, "measure again with this version") from error
