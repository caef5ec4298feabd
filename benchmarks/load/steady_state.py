"""When a level of load has been measured long enough: its last windows agree.

Shapes: R requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from pipework.benchmarks.load.outcome import Outcome
from pipework.benchmarks.results_schema.level import Window
from pipework.benchmarks.stats.latency import PERCENTILES, interval

LAST = 3  # windows that must agree, and are what is reported
SHARE = 0.1
# The range of three normal values is less than this many standard deviations, 19 times of 20.
RANGE_OF_THREE = 3.31


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What was answered within a window: requests, and their p99 with its 95 % interval in ms."""

    stored: Window
    requests: int
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], duration_s: float) -> "Seen":
        """Look at the requests that ended within a window."""
        answered = [one for one in outcomes if one.error is None]
        ms_R = 1000 * np.array([one.end_s - one.intended_s for one in answered], np.float64)
        p99_ms, (low_ms, high_ms) = None, (0.0, inf)
        if answered:
            p99_ms = round(float(np.percentile(ms_R, 99)), 3)
            low_ms, high_ms = interval(np.sort(ms_R), PERCENTILES["p99"]) or (0.0, inf)
        texts = sum(one.texts for one in answered)
        stored = Window(
            duration_s=round(duration_s, 3),
            texts_per_s=round(texts / duration_s, 2),
            p99_ms=p99_ms,
        )
        return cls(stored=stored, requests=len(answered), low_ms=low_ms, high_ms=high_ms)


def agree(windows: Sequence[Seen], *, by_chance: bool) -> bool:
    """Return whether there are three windows at the end that agree.

    Their throughputs lie within 10 % of their mean, or where arrivals are random, within that and
    what chance makes of so few requests. Their p99 lie within 10 % of their mean too, or what they
    differ by is not more than so few requests leave open: their 95 % intervals share a value.
    """
    last = windows[-LAST:]
    if len(last) < LAST or not all(one.requests for one in last):
        return False
    requests = sum(one.requests for one in last) / LAST
    chance = RANGE_OF_THREE / sqrt(requests) if by_chance else 0.0
    if not _within([one.stored.texts_per_s for one in last], SHARE + chance):
        return False
    if max(one.low_ms for one in last) <= min(one.high_ms for one in last):
        return True
    return _within([one.stored.p99_ms or 0.0 for one in last], SHARE)


def _within(values: Sequence[float], share: float) -> bool:
    return max(values) - min(values) <= share * sum(values) / len(values)
