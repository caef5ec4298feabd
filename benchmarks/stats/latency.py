"""Percentiles, intervals and histograms of latencies. Shapes: R requests or calls."""

from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

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
