"""Records of stored verdicts on a service level objective (SLO)."""

from enum import StrEnum

from pipework.run_folder.files import Record


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
    of them that met the objective. `reason` explains where the search ended. The search starts near
    the closed-loop throughput `peak` and tries no rate below `least`, where a level has too few
    requests (both in requests/s).
    """

    limits: tuple[SloLimit, ...]
    asked: tuple[float, ...] = ()
    rate: float | None
    texts_per_request: int
    trials: tuple[RateTrial, ...]
    least: float | None = None
    peak: float | None = None
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
