"""Steady-state detection: a level has been measured long enough when its last windows agree.

Shapes: R requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.results_schema.level import Window
from pipework.benchmarks.stats.latency import PERCENTILES, interval

LAST = 3  # number of last windows that must agree and are reported
TOLERANCE = 0.1
# 95 % quantile of the range of three normally distributed values, in standard deviations.
RANGE_OF_THREE = 3.31


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowStats:
    """Successful requests of a window, and the 95 % interval of their p99 in ms."""

    stored: Window
    requests: int
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, outcomes: Sequence[RequestOutcome], duration_s: float) -> "WindowStats":
        """Return the statistics of the requests that ended within a window."""
        succeeded = [outcome for outcome in outcomes if outcome.error is None]
        ms_R = 1000 * np.array(
            [outcome.end_s - outcome.intended_s for outcome in succeeded], np.float64
        )
        p99_ms, (low_ms, high_ms) = None, (0.0, inf)
        if succeeded:
            p99_ms = round(float(np.percentile(ms_R, 99)), 3)
            low_ms, high_ms = interval(np.sort(ms_R), PERCENTILES["p99"]) or (0.0, inf)
        texts = sum(outcome.texts for outcome in succeeded)
        stored = Window(
            duration_s=round(duration_s, 3),
            texts_per_s=round(texts / duration_s, 2),
            p99_ms=p99_ms,
        )
        return cls(stored=stored, requests=len(succeeded), low_ms=low_ms, high_ms=high_ms)


def agree(windows: Sequence[WindowStats], *, random_arrivals: bool) -> bool:
    """Return whether the last three windows agree in throughput and p99.

    The range of the throughputs is at most 10 % of their mean, plus the expected random variation
    for random arrivals. The 95 % intervals of the p99 overlap, or their range is at most 10 % of
    their mean.
    """
    last = windows[-LAST:]
    if len(last) < LAST or not all(window.requests for window in last):
        return False
    requests = sum(window.requests for window in last) / LAST
    chance = RANGE_OF_THREE / sqrt(requests) if random_arrivals else 0.0
    if not _within([window.stored.texts_per_s for window in last], TOLERANCE + chance):
        return False
    if max(window.low_ms for window in last) <= min(window.high_ms for window in last):
        return True
    return _within([window.stored.p99_ms or 0.0 for window in last], TOLERANCE)


def _within(values: Sequence[float], share: float) -> bool:
    return max(values) - min(values) <= share * sum(values) / len(values)
