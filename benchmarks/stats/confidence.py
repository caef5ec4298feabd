"""Confidence intervals of a level's figures, estimated from their variation over time.

Latencies of successive requests are correlated (they share a queue, and the machine has slow
phases), so the standard error of independent samples would be too small. The level is divided into
short slices. The mean square of the first K cosine coefficients of the slice sums estimates the
long-run variance of a slice, and a mean has Student's t distribution with K degrees of freedom
(Lazarus, Lewis, Stock, Watson 2018, HAR inference, Journal of Business & Economic Statistics 36).

The slices cover the whole level even if only its last windows are reported: these windows were
selected because they agree, so their own variation would be too small.

Shapes: S slices, K cosines, R requests or calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, floor, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from pipework.benchmarks.results_schema.comparison import Quantity, Ratio, RatioVerdict
from pipework.benchmarks.results_schema.level import Histogram, Latency

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# All histograms share this grid of edges (0.1 ms to 100 s, 20 bins per decade), so that levels and
# results can be overlaid and a stored histogram is bounded.
GRID_MS = np.logspace(-1, 5, 121)
NORMAL_95 = 1.96


def latency(latencies_s_R: NDArray[np.float64]) -> Latency:
    """Return percentiles, mean and maximum of latencies in seconds; at least one is required."""
    ms_R = latencies_s_R * 1000
    shares = [100 * share for share in PERCENTILES.values()]
    values = (round(float(value), 3) for value in np.percentile(ms_R, shares))
    mean, longest = round(float(ms_R.mean()), 3), round(float(ms_R.max()), 3)
    return Latency(**dict(zip(PERCENTILES, values, strict=True)), mean=mean, max=longest)


def interval(sorted_R: NDArray[np.float64], share: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a percentile of sorted values, None if there are too few.

    The ends are order statistics, valid for any distribution (W. J. Conover, Practical
    Nonparametric Statistics, 3rd ed., section 3.2). It assumes independent values: for requests
    that share a queue it is too narrow.
    """
    count = len(sorted_R)
    half = NORMAL_95 * sqrt(count * share * (1 - share))
    low, high = floor(count * share - half), ceil(count * share + half)
    if low < 0 or high >= count:
        return None
    return round(float(sorted_R[low]), 3), round(float(sorted_R[high]), 3)


def histogram(latencies_s_R: NDArray[np.float64]) -> Histogram:
    """Return the histogram of latencies in seconds, from the first to the last non-empty bin."""
    ms_R = np.clip(latencies_s_R * 1000, GRID_MS[0], GRID_MS[-1])
    counts, _ = np.histogram(ms_R, GRID_MS)
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1]) + 1
    return Histogram(
        edges_ms=tuple(round(float(edge), 4) for edge in GRID_MS[first : last + 1]),
        counts=tuple(int(count) for count in counts[first:last]),
    )


CONFIDENCE = 0.95
SLICES = 60  # of the reported windows
MIN_SLICES = 12
DEGREES_OF_FREEDOM = 5  # captures variation slower than about a tenth of the reported duration
MIN_REQUESTS = 10  # with fewer requests, the interval of a rate is meaningless

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t distribution; `degrees_of_freedom` may be infinite."""
    # What scipy.stats.t.ppf calls, without the 1.5 s that the import of scipy.stats takes.
    from scipy.special import stdtrit  # noqa: PLC0415  (needs an extra)

    return float(stdtrit(degrees_of_freedom, probability))


def _half_width(standard_error: float) -> float:
    """Return half the width of a 95 % interval."""
    return t_quantile((1 + CONFIDENCE) / 2, DEGREES_OF_FREEDOM) * standard_error


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicedSeries:
    """A level divided into `slices` time slices, of which the last `reported` are reported."""

    slices: int
    reported: int

    def standard_error(self, slice_R: Numbers, value_R: Floats) -> float:
        """Return the standard error of the sum of these values over the reported slices."""
        sum_S = np.bincount(slice_R, value_R, minlength=self.slices)
        order_K = np.arange(1, DEGREES_OF_FREEDOM + 1)
        time_S = (np.arange(self.slices) + 0.5) / self.slices
        cosine_KS = sqrt(2 / self.slices) * np.cos(np.pi * np.outer(order_K, time_S))
        return sqrt(self.reported * float(np.mean((cosine_KS @ sum_S) ** 2)))

    def rate_interval(
        self, rate: float, standard_error: float, requests: int
    ) -> tuple[float, float] | None:
        """Return the 95 % interval of a rate, None if `requests` are too few.

        `standard_error` is that of the rate's logarithm, that is, its relative error.
        """
        if self.slices < MIN_SLICES or requests < MIN_REQUESTS:
            return None
        half_width = _half_width(standard_error)
        return round(rate * exp(-half_width), 3), round(rate * exp(half_width), 3)

    def percentile_intervals_ms(
        self, slice_R: Numbers, time_s_R: Floats, reported_s_R: Floats
    ) -> dict[str, tuple[float, float]]:
        """Return 95 % intervals of the reported percentiles by name; too short series have none.

        The interval ends are order statistics: the error of the share of requests below the
        percentile gives their ranks (R. Woodruff 1952, Journal of the American Statistical
        Association 47). The error is at least that of independent requests.
        """
        if self.slices < MIN_SLICES:
            return {}
        sorted_ms_R = 1000 * np.sort(reported_s_R)
        intervals = {}
        for name, share in PERCENTILES.items():
            at_s = float(np.quantile(reported_s_R, share))
            below_R = (time_s_R <= at_s).astype(np.float64)
            standard_error = self.standard_error(slice_R, below_R - below_R.mean())
            standard_error = max(standard_error, sqrt(len(sorted_ms_R) * share * (1 - share)))
            middle, half_width = share * len(sorted_ms_R), _half_width(standard_error)
            low, high = floor(middle - half_width), ceil(middle + half_width)
            if low >= 0 and high < len(sorted_ms_R):
                both = (float(sorted_ms_R[low]), float(sorted_ms_R[high]))
                intervals[name] = (round(both[0], 3), round(both[1], 3))
        return intervals


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
