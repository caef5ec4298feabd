"""Latencies become figures. Shapes: R requests or calls."""

from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from pipework.benchmarks.results_schema.level import Histogram, Latency

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# Every histogram takes its edges from this one grid (0.1 ms to 100 s, 20 bins a decade), so that
# levels and results can be laid over each other, and a stored histogram is bounded.
GRID_MS = np.logspace(-1, 5, 121)
NORMAL_95 = 1.96


def latency(latencies_s_R: NDArray[np.float64]) -> Latency:
    """Summarise latencies given in seconds, at least one."""
    ms_R = latencies_s_R * 1000
    shares = [100 * share for share in PERCENTILES.values()]
    values = (round(float(value), 3) for value in np.percentile(ms_R, shares))
    mean, longest = round(float(ms_R.mean()), 3), round(float(ms_R.max()), 3)
    return Latency(**dict(zip(PERCENTILES, values, strict=True)), mean=mean, max=longest)


def interval(sorted_R: NDArray[np.float64], share: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a percentile of sorted values, None if they are too few.

    It lies between two of the values, whatever their distribution (W. J. Conover, Practical
    Nonparametric Statistics, 3rd ed., section 3.2). Requests that waited for each other are not
    independent: there it is narrower than it should be.
    """
    count = len(sorted_R)
    half = NORMAL_95 * sqrt(count * share * (1 - share))
    low, high = floor(count * share - half), ceil(count * share + half)
    if low < 0 or high >= count:
        return None
    return round(float(sorted_R[low]), 3), round(float(sorted_R[high]), 3)


def histogram(latencies_s_R: NDArray[np.float64]) -> Histogram:
    """Count latencies given in seconds, at least one, over the bins in use."""
    ms_R = np.clip(latencies_s_R * 1000, GRID_MS[0], GRID_MS[-1])
    counts, _ = np.histogram(ms_R, GRID_MS)
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1]) + 1
    return Histogram(
        edges_ms=tuple(round(float(edge), 4) for edge in GRID_MS[first : last + 1]),
        counts=tuple(int(count) for count in counts[first:last]),
    )
