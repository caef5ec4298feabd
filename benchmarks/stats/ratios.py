"""Ratios of two measurements with confidence intervals and verdicts.

Computed on logarithms, so that the ratios 2 and 1/2 are equally far from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt

from pipework.benchmarks.results_schema.comparison import Quantity, Ratio, RatioVerdict
from pipework.benchmarks.stats.confidence import CONFIDENCE, t_quantile


@dataclass(frozen=True, kw_only=True, slots=True)
class LogVariance:
    """Variance of a logarithm, and the degrees of freedom of its estimate."""

    variance: float
    degrees_of_freedom: float = inf

    def __add__(self, other: "LogVariance") -> "LogVariance":
        """Return the variance of the difference of two logarithms (Welch 1947, Biometrika 34)."""
        total = self.variance + other.variance
        parts = sum(term.variance**2 / term.degrees_of_freedom for term in (self, other))
        return LogVariance(variance=total, degrees_of_freedom=total**2 / parts if parts else inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A quantity on both sides; `log_variance` is that of their ratio, None if unknown."""

    quantity: Quantity
    before: float
    after: float
    log_variance: LogVariance | None

    def ratio(self, *, simultaneous: int, tolerance: float) -> Ratio:
        """Return the ratio with its interval and verdict.

        The interval is widened by the Bonferroni correction for `simultaneous` intervals, so that
        only 1 of 20 comparisons of a server with itself reports any difference.
        """
        ratio, low, high = self.after / self.before, None, None
        if self.log_variance is not None:
            probability = 1 - (1 - CONFIDENCE) / (2 * simultaneous)
            quantile = t_quantile(probability, self.log_variance.degrees_of_freedom)
            half_width = quantile * sqrt(self.log_variance.variance)
            low, high = ratio * exp(-half_width), ratio * exp(half_width)
        return Ratio(
            quantity=self.quantity,
            before=self.before,
            after=self.after,
            ratio=round(ratio, 5),
            low=None if low is None else round(low, 5),
            high=None if high is None else round(high, 5),
            verdict=verdict(self.quantity, ratio, (low, high), tolerance),
        )


def variance_of_interval(low: float, high: float, degrees_of_freedom: float) -> LogVariance:
    """Return the variance of a value's logarithm from its 95 % interval of Student's t."""
    half_width = log(high / low) / 2
    return LogVariance(
        variance=(half_width / t_quantile((1 + CONFIDENCE) / 2, degrees_of_freedom)) ** 2,
        degrees_of_freedom=degrees_of_freedom,
    )


def with_pooled_minimum(log_variances: Sequence[LogVariance]) -> list[LogVariance]:
    """Return the variances, each raised to at least the pooled variance."""
    # A variance estimated from few rounds may be small by chance, which would make a small
    # difference significant. The pooled variance of all levels has more degrees of freedom.
    degrees_of_freedom = sum(each.degrees_of_freedom for each in log_variances)
    weighted = sum(each.variance * each.degrees_of_freedom for each in log_variances)
    pooled = LogVariance(
        variance=weighted / degrees_of_freedom, degrees_of_freedom=degrees_of_freedom
    )
    return [each if each.variance > pooled.variance else pooled for each in log_variances]


def verdict(
    quantity: Quantity, ratio: float, bounds: tuple[float | None, float | None], tolerance: float
) -> RatioVerdict:
    """Return faster or slower if the ratio exceeds the tolerance and its interval excludes 1."""
    low, high = bounds
    if low is None or high is None:
        return RatioVerdict.UNKNOWN
    if low <= 1 <= high or 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return RatioVerdict.NO_DIFFERENCE
    better = (ratio > 1) is (quantity is Quantity.TEXTS_PER_S)
    return RatioVerdict.FASTER if better else RatioVerdict.SLOWER
