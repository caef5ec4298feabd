"""Stored comparisons: how many times the rate and the latency of one are those of another."""

from enum import StrEnum
from typing import Literal

from pipework.benchmarks.results_schema.level import WorkloadSummary
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record

MORE_FAILURES = 0.001


class Verdict(StrEnum):
    """What a ratio says of the second of two, where more texts/s and fewer milliseconds win."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference seen"
    UNKNOWN = "no interval"


class Quantity(StrEnum):
    """What is compared at a level."""

    TEXTS_PER_S = "texts/s"
    P50 = "p50"
    P99 = "p99"


class Ratio(Record):
    """A figure of both sides, and the second divided by the first.

    `low` and `high` bound the ratio; the intervals of one comparison hold together with 95 %
    confidence. They are None where a side was stored without what tells its spread.
    """

    quantity: Quantity
    before: float
    after: float
    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict


class ComparedLevel(Record):
    """One level that both sides have; `failed` are the shares of requests that failed.

    `cost_per_million` is of so many texts, in the unit of the prices of an hour that were given.
    """

    name: str
    ratios: tuple[Ratio, ...]
    failed: tuple[float, float]
    cost_per_million: tuple[float, float] | None = None

    @property
    def fails_more(self) -> bool:
        """Whether the second fails more often, by more than one request of a thousand."""
        before, after = self.failed
        return after - before > MORE_FAILURES


class Side(Record):
    """What was measured on one side."""

    target: str
    model: str
    workload: WorkloadSummary
    provenance: Provenance
    command: tuple[str, ...]


class ComparisonResult(Record):
    """Two stored results, or two targets that took turns in one run, level by level.

    Of two results the second is judged; of `pipe bench TARGET --against OTHER` it is TARGET.
    `rounds` is the number of ABBA rounds at each level, None for stored results. `differences`
    say what else differs than what was to be compared: workload, machine, commit, versions.
    `unmatched` name the levels that only one side has. A ratio is judged only beyond `tolerance`.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["comparison"] = "comparison"
    before: Side
    after: Side
    rounds: int | None
    tolerance: float
    levels: tuple[ComparedLevel, ...]
    differences: tuple[str, ...]
    unmatched: tuple[str, ...]

    @property
    def names(self) -> tuple[str, str]:
        """What both sides are called: their targets, or before and after where these are one."""
        if self.before.target != self.after.target:
            return self.before.target, self.after.target
        return f"{self.before.target} before", f"{self.after.target} after"

    @property
    def provenance(self) -> Provenance:
        """Where the one that is judged was measured."""
        return self.after.provenance

    @property
    def regressions(self) -> tuple[str, ...]:
        """What became worse, a line each."""
        worse = [
            f"{level.name}: {one.quantity} {one.ratio:.2f} times as before"
            for level in self.levels
            for one in level.ratios
            if one.verdict is Verdict.SLOWER
        ]
        failing = [
            f"{level.name}: {level.failed[1]:.1%} of requests fail, before {level.failed[0]:.1%}"
            for level in self.levels
            if level.fails_more
        ]
        return (*worse, *failing)
