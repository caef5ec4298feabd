"""Records of stored comparisons: ratios of throughput and latency between two servers."""

from enum import StrEnum
from typing import Literal

from pipework.benchmarks.results_schema.level import WorkloadSummary
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record

MORE_FAILURES = 0.001  # a rise of the failed share of requests by more than this is a regression


class RatioVerdict(StrEnum):
    """Verdict on the second side of a ratio; more texts/s and fewer milliseconds are better."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"


class Quantity(StrEnum):
    """Quantity compared at a level."""

    TEXTS_PER_S = "texts/s"
    P50 = "p50"
    P99 = "p99"


class Ratio(Record):
    """A quantity on both sides, and `ratio`, which is `after` divided by `before`.

    `low` and `high` are the confidence interval of the ratio; all intervals of a comparison hold
    simultaneously with 95 % confidence.
    """

    quantity: Quantity
    before: float
    after: float
    ratio: float
    low: float
    high: float
    verdict: RatioVerdict


class ComparedLevel(Record):
    """Comparison at one load level; `failed` are the shares of failed requests (before, after).

    `cost_per_million` are the costs of a million texts (before, after), in the currency of the
    prices per hour.
    """

    name: str
    ratios: tuple[Ratio, ...]
    failed: tuple[float, float]
    cost_per_million: tuple[float, float] | None = None

    @property
    def fails_more(self) -> bool:
        """Whether the share of failed requests rose by more than 0.1 percentage points."""
        before, after = self.failed
        return after - before > MORE_FAILURES


class ComparedServer(Record):
    """One side of a comparison: the URL and the name of the model."""

    target: str
    model: str


class ComparisonResult(Record):
    """Comparison of two servers measured alternately, level by level.

    `after` is TARGET of `pipe bench TARGET --against OTHER`, `before` the baseline OTHER. `rounds`
    is the number of ABBA rounds per level. Ratios within `tolerance` of 1 count as no difference.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["comparison"] = "comparison"
    command: tuple[str, ...]
    before: ComparedServer
    after: ComparedServer
    provenance: Provenance
    workload: WorkloadSummary
    rounds: int
    tolerance: float
    levels: tuple[ComparedLevel, ...]

    @property
    def names(self) -> tuple[str, str]:
        """Names of both sides: their targets, with "before" and "after" added if equal."""
        if self.before.target != self.after.target:
            return self.before.target, self.after.target
        return f"{self.before.target} before", f"{self.after.target} after"

    @property
    def regressions(self) -> tuple[str, ...]:
        """One line per quantity that became worse."""
        worse = [
            f"{level.name}: {ratio.quantity} {ratio.ratio:.2f} times the baseline"
            for level in self.levels
            for ratio in level.ratios
            if ratio.verdict is RatioVerdict.SLOWER
        ]
        failing = [
            f"{level.name}: {level.failed[1]:.1%} of requests fail, baseline {level.failed[0]:.1%}"
            for level in self.levels
            if level.fails_more
        ]
        return (*worse, *failing)
