"""Stored verdicts on a service level objective (SLO)."""

from enum import StrEnum

from pipework.run_folder.files import Record


class Statistic(StrEnum):
    """What an objective limits, as `--slo` names it."""

    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    P999 = "p99.9"
    MEAN = "mean"


class Limit(Record):
    """The most that a statistic of the latency may be, in milliseconds."""

    statistic: Statistic
    most_ms: float


class RateTrial(Record):
    """One open-loop level against the objective: `rate` in requests/s, and what was missed.

    `seen_ms` are the limited statistics in the order of the limits, None if nothing was answered.
    `missed` says in words what did not hold; it is empty where all did.
    """

    rate: float
    seen_ms: tuple[float | None, ...]
    missed: tuple[str, ...]

    @property
    def met(self) -> bool:
        """Whether all held."""
        return not self.missed


class SloResult(Record):
    """Which rate meets an objective: the largest that a search found, or those asked for.

    `trials` are in the order in which they ran, and so are the open-loop levels beside them.
    After a search `rate` is the largest rate (requests/s) that two trials met, at it or above it;
    None if no rate did. `asked` are the rates of `--rate`; then `rate` is the largest of them that
    was met. `reason` says why the search ended where it did. It tried no rate below `least`, where
    a level has too few requests, and began at what waiting clients got, `peak` (both requests/s).
    """

    limits: tuple[Limit, ...]
    asked: tuple[float, ...] = ()
    rate: float | None
    texts_per_request: int
    trials: tuple[RateTrial, ...]
    least: float | None = None
    peak: float | None = None
    reason: str

    @property
    def met(self) -> bool:
        """Whether the objective was met: by every rate asked for, or by one that was found."""
        if self.asked:
            return all(trial.met for trial in self.trials)
        return self.rate is not None

    @property
    def texts_per_s(self) -> float | None:
        """Texts a second at that rate."""
        return None if self.rate is None else self.rate * self.texts_per_request
