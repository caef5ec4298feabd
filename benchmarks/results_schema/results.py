"""Stored results of `pipe bench`.

A result contains no host name and no path of the measuring machine, so it can be published.
"""

from enum import StrEnum
from pathlib import Path
from typing import Literal

from pipework.benchmarks.results_schema.level import Latency, Level, WorkloadSummary
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record
from pipework.run_folder.files import check_writable, write_atomically


class Statistic(StrEnum):
    """Latency statistic limited by an objective, as written in `--slo`."""

    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    P999 = "p99.9"
    MEAN = "mean"


class SloLimit(Record):
    """Maximum of a latency statistic, in milliseconds."""

    statistic: Statistic
    most_ms: float


class RateTrial(Record):
    """Result of one open-loop level checked against the objective; `rate` is in requests/s.

    `seen_ms` are the measured statistics in the order of the limits, None if no request succeeded.
    `missed` describes each violation; it is empty if the objective was met.
    """

    rate: float
    seen_ms: tuple[float | None, ...]
    missed: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Whether the objective was met."""
        return not self.missed


class SloResult(Record):
    """Verdict on an objective: the rates given by `--rate`, or a search for the largest rate.

    `trials` are in the order in which they ran, as are the open-loop levels of the same result.
    After a search, `rate` is the largest rate (requests/s) at or above which two trials met the
    objective; None if there is none. `asked` are the rates of `--rate`; then `rate` is the largest
    of them that met the objective. `reason` explains where the search ended.
    """

    limits: tuple[SloLimit, ...]
    asked: tuple[float, ...] = ()
    rate: float | None
    texts_per_request: int
    trials: tuple[RateTrial, ...]
    reason: str

    @property
    def met(self) -> bool:
        """Whether the objective was met: by every rate of `--rate`, or by a rate of the search."""
        if self.asked:
            return all(trial.met for trial in self.trials)
        return self.rate is not None

    @property
    def texts_per_s(self) -> float | None:
        """Throughput in texts/s at `rate`."""
        return None if self.rate is None else self.rate * self.texts_per_request


class OfflineLevel(Record):
    """Result of one stage measured in this process, without a server.

    `stage` is "tokenizing" or an engine's name. Latencies are per call with `batch` texts.
    """

    stage: str
    batch: int
    duration_s: float
    calls: int
    texts: int
    texts_per_s: float
    tokens_per_s: float | None = None
    latency_ms: Latency


class BenchResult(Record):
    """Result of `pipe bench`: `levels` of a server, or `offline` levels of a run folder's engines.

    `slo` is the verdict on a service level objective; its trials are the open-loop levels.
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
    slo: SloResult | None = None


def write_result(path: Path, result: Record) -> None:
    """Write a result as JSON, atomically.

    Raises:
        ConfigError: as `check_writable`.
    """
    check_writable(path)
    write_atomically(path, (result.model_dump_json(indent=2) + "\n").encode())
