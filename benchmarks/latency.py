"""Latencies become figures. Shapes: R requests or calls."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.latency_results import Histogram, Latency

# Every histogram takes its edges from this one grid (0.1 ms to 100 s, 20 bins a decade), so that
# levels and results can be laid over each other, and a stored histogram is bounded.
GRID_MS = np.logspace(-1, 5, 121)


def latency(latencies_s_R: NDArray[np.float64]) -> Latency:
    """Summarise latencies given in seconds, at least one."""
    ms_R = latencies_s_R * 1000
    p50, p90, p95, p99 = (round(float(p), 3) for p in np.percentile(ms_R, (50, 90, 95, 99)))
    mean, longest = round(float(ms_R.mean()), 3), round(float(ms_R.max()), 3)
    return Latency(p50=p50, p90=p90, p95=p95, p99=p99, mean=mean, max=longest)


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
