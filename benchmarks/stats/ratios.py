"""How many times a quantity is another one, how sure that is, and what it says.

All is done with logarithms: a ratio of 2 and one of 1/2 are equally far from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt

from pipework.benchmarks.results_schema.comparison import Quantity, Ratio, Verdict
from pipework.benchmarks.stats.confidence import CONFIDENCE
from pipework.benchmarks.stats.student_t import quantile


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The variance of a logarithm, and how many degrees of freedom its estimate has."""

    variance: float
    freedom: float = inf

    def __add__(self, other: "Spread") -> "Spread":
        """Return that of a difference of two (Welch 1947, Biometrika 34)."""
        total = self.variance + other.variance
        parts = sum(one.variance**2 / one.freedom for one in (self, other))
        return Spread(variance=total, freedom=total**2 / parts if parts else inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure of both sides; `spread` is that of the logarithm of their ratio, if it is known."""

    quantity: Quantity
    before: float
    after: float
    spread: Spread | None

    def ratio(self, *, together: int, tolerance: float) -> Ratio:
        """Return the ratio with an interval, one of so many that hold together, and a verdict.

        The intervals are widened by Bonferroni's rule, so that of a comparison of a server with
        itself one of twenty is wrong anywhere, however many figures it has.
        """
        ratio, low, high = self.after / self.before, None, None
        if self.spread is not None:
            share = 1 - (1 - CONFIDENCE) / (2 * together)
            half = quantile(share, self.spread.freedom) * sqrt(self.spread.variance)
            low, high = ratio * exp(-half), ratio * exp(half)
        return Ratio(
            quantity=self.quantity,
            before=self.before,
            after=self.after,
            ratio=round(ratio, 5),
            low=None if low is None else round(low, 5),
            high=None if high is None else round(high, 5),
            verdict=verdict(self.quantity, ratio, (low, high), tolerance),
        )


def of_interval(low: float, high: float, freedom: float) -> Spread:
    """Return the spread of the logarithm of a value with this 95 % interval of Student's."""
    half = log(high / low) / 2
    return Spread(
        variance=(half / quantile((1 + CONFIDENCE) / 2, freedom)) ** 2,
        freedom=freedom,
    )


def at_least_pooled(spreads: Sequence[Spread]) -> list[Spread]:
    """Return spreads of a few values each, none of which is smaller than they are on average.

    Few values may lie together by chance, which would make a small difference look sure. What all
    levels show together is known better, and a level that varies more keeps its own.
    """
    freedom = sum(one.freedom for one in spreads)
    pooled = sum(one.variance * one.freedom for one in spreads) / freedom
    common = Spread(variance=pooled, freedom=freedom)
    return [one if one.variance > pooled else common for one in spreads]


def verdict(
    quantity: Quantity, ratio: float, bounds: tuple[float | None, float | None], tolerance: float
) -> Verdict:
    """Say what a ratio means: a difference is seen beyond the tolerance, by the whole interval."""
    low, high = bounds
    if low is None or high is None:
        return Verdict.UNKNOWN
    if low <= 1 <= high or 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return Verdict.NO_DIFFERENCE
    better = (ratio > 1) is (quantity is Quantity.TEXTS_PER_S)
    return Verdict.FASTER if better else Verdict.SLOWER
