"""Percentiles of latencies, and the intervals of ratios.

Shapes: R requests or calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from pipework.benchmarks.results_schema.comparison import Quantity, Ratio, RatioVerdict
from pipework.benchmarks.results_schema.level import Latency

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
CONFIDENCE = 0.95

Floats = NDArray[np.float64]


def latency(latencies_s_R: Floats) -> Latency:
    """Return percentiles, mean and maximum of latencies in seconds; at least one is required."""
    ms_R = latencies_s_R * 1000
    shares = [100 * share for share in PERCENTILES.values()]
    values = (round(float(value), 3) for value in np.percentile(ms_R, shares))
    percentiles = dict(zip(PERCENTILES, values, strict=True))
    return Latency(
        **percentiles, mean=round(float(ms_R.mean()), 3), max=round(float(ms_R.max()), 3)
    )


@cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t distribution; `degrees_of_freedom` may be infinite."""
    # What scipy.stats.t.ppf calls, without the 1.5 s that the import of scipy.stats takes.
    from scipy.special import stdtrit  # noqa: PLC0415  (needs an extra)

    return float(stdtrit(degrees_of_freedom, probability))


@dataclass(frozen=True, kw_only=True, slots=True)
class LogVariance:
    """Variance of a logarithm, and the degrees of freedom of its estimate."""

    variance: float
    degrees_of_freedom: float = inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A quantity on both sides, and the variance of the logarithm of their ratio."""

    quantity: Quantity
    before: float
    after: float
    log_variance: LogVariance

    def ratio(self, *, simultaneous: int, tolerance: float) -> Ratio:
        """Return the ratio with its interval and verdict.

        The interval is widened by the Bonferroni correction for `simultaneous` intervals, so that
        only 1 of 20 comparisons of a server with itself reports any difference.
        """
        ratio = self.after / self.before
        probability = 1 - (1 - CONFIDENCE) / (2 * simultaneous)
        quantile = t_quantile(probability, self.log_variance.degrees_of_freedom)
        half_width = quantile * sqrt(self.log_variance.variance)
        low, high = ratio * exp(-half_width), ratio * exp(half_width)
        return Ratio(
            quantity=self.quantity,
            before=self.before,
            after=self.after,
            ratio=round(ratio, 5),
            low=round(low, 5),
            high=round(high, 5),
            verdict=verdict(self.quantity, ratio, (low, high), tolerance),
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
    quantity: Quantity, ratio: float, bounds: tuple[float, float], tolerance: float
) -> RatioVerdict:
    """Return faster or slower if the ratio exceeds the tolerance and its interval excludes 1."""
    low, high = bounds
    if low <= 1 <= high or 1 / (1 + tolerance) <= ratio <= 1 + tolerance:
        return RatioVerdict.NO_DIFFERENCE
    better = (ratio > 1) is (quantity is Quantity.TEXTS_PER_S)
    return RatioVerdict.FASTER if better else RatioVerdict.SLOWER
