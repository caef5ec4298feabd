"""Stored results of `pipe bench`.

A result contains no host name and no path of the measuring machine, so it can be published.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from pipework.benchmarks.results_schema.comparison import ComparisonResult
from pipework.benchmarks.results_schema.level import Latency, Level, WorkloadSummary
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.benchmarks.results_schema.slo import SloResult
from pipework.errors import DataError
from pipework.run_folder.files import Record, check_writable, write_atomically

AnyResult = TypeVar("AnyResult", bound=Record)
# Above this share of its own maximum rate, the load generator may limit the measured throughput.
GENERATOR_SHARE = 0.7


class OfflineLevel(Record):
    """Result of one stage measured in this process, without a server.

    `stage` is "tokenizing" or an engine's name. Latencies are per call with `batch` texts.
    Intervals are defined as in `Level`.
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
    """Result of `pipe bench`: `levels` of a server, or `offline` levels of a run folder's engines.

    `generator_limit` is the maximum rate of the load generator in requests/s, measured beforehand
    against a responder that does no work. `slo` is the verdict on a service level objective; its
    trials are the open-loop levels.
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

    def generator_is_bottleneck(self, level: Level) -> bool:
        """Whether the load generator, not the server, may have limited a level's throughput."""
        limit = self.generator_limit
        return limit is not None and level.requests_per_s > GENERATOR_SHARE * limit


Result = BenchResult | ComparisonResult
RESULT: TypeAdapter[Result] = TypeAdapter(Annotated[Result, Field(discriminator="kind")])


def write_result(path: Path, result: Record) -> None:
    """Write a result as JSON, atomically.

    Raises:
        ConfigError: as `check_writable`.
    """
    check_writable(path)
    write_atomically(path, (result.model_dump_json(indent=2) + "\n").encode())


def read_result(path: Path) -> Result:
    """Read a result written by `pipe bench`.

    Raises:
        DataError: the file is missing or is not a result of this schema version.
    """
    return read_as(path, RESULT)


def read_as(path: Path, results: TypeAdapter[AnyResult]) -> AnyResult:
    """Read a result of one of the given types.

    Raises:
        DataError: the file is missing or is not a result of this schema version.
    """
    try:
        return results.validate_json(path.read_bytes())
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"{path} is not a result of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        raise DataError(message, "measure again with this version") from error
