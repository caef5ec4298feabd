"""The search for the largest rate that meets an objective.

Levels are noisy, and what a rate does is only nearly monotonic. So the search brackets the edge
from the closed-loop peak, bisects, and runs the winner once more: two trials at the rate that is
reported, or above it, have met the objective.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

from pipework.benchmarks.load.slo import judge
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.slo import Limit, RateTrial, SloResult

Measure = Callable[[float], Level]
MOST_LEVELS = 14
FIRST = 0.8  # of the closed-loop peak
STEP = 1.3
CLOSE = 1.05  # how far apart the two rates around the edge may be at the end
BACK = 0.9  # a winner that fails its second trial gives way to this part of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What rates may be tried, in requests/s: fewer are too few to tell, more nobody can send."""

    least: float
    most: float | None = None

    def within(self, rate: float) -> float:
        """Return the nearest rate inside."""
        return max(self.least, rate if self.most is None else min(rate, self.most))


@dataclass(kw_only=True, slots=True)
class _Search:
    measure: Measure
    limits: Sequence[Limit]
    bounds: Bounds
    levels: list[Level] = field(default_factory=list)
    trials: list[RateTrial] = field(default_factory=list)

    def meets(self, rate: float) -> bool:
        level = self.measure(rate)
        self.levels.append(level)
        self.trials.append(judge(level, self.limits).model_copy(update={"rate": rate}))
        return self.trials[-1].met

    @property
    def spent(self) -> bool:
        return len(self.trials) >= MOST_LEVELS - 1  # one is kept for the winner's second trial

    def bracket(self, rate: float) -> tuple[float | None, float | None]:
        """Return the largest rate known to be met and the smallest known to be missed."""
        met = missed = None
        step = STEP
        while not self.spent:
            if self.meets(rate):
                met, following = rate, self.bounds.within(rate * step)
            else:
                missed, following = rate, self.bounds.within(rate / step)
            if (met and missed) or following == rate:
                break
            rate, step = following, step * STEP  # what is far away is reached in few steps
        return met, missed

    def bisect(self, met: float, missed: float) -> float:
        while missed / met > CLOSE and not self.spent:
            middle = sqrt(met * missed)
            if self.meets(middle):
                met = middle
            else:
                missed = middle
        return met

    def confirm(self, rate: float) -> float | None:
        """Return the rate that a second trial bears out, stepping back from one that it does not.

        Lower rates need no two trials of their own: the winner has met the objective once already.
        """
        while len(self.trials) < MOST_LEVELS and rate >= self.bounds.least:
            if self.meets(rate):
                return rate
            rate *= BACK
        return None


def search(
    measure: Measure, limits: Sequence[Limit], *, peak: float, bounds: Bounds
) -> tuple[SloResult, tuple[Level, ...]]:
    """Find the largest rate (requests/s) that meets the limits, with 14 levels at most.

    `measure` runs one open-loop level at a rate; `peak` is what the server answered in a closed
    loop, in requests/s. Returned are the verdict and the levels in the order of its trials.
    """
    one = _Search(measure=measure, limits=limits, bounds=bounds)
    met, missed = one.bracket(bounds.within(FIRST * peak))
    if met is not None and missed is not None:
        met = one.bisect(met, missed)
    rate = None if met is None else one.confirm(met)
    result = SloResult(
        limits=tuple(limits),
        rate=rate,
        texts_per_request=one.levels[0].texts_per_request or 1,
        trials=tuple(one.trials),
        least=round(bounds.least, 3),
        peak=peak,
        reason=_reason(one, rate, missed),
    )
    return result, tuple(one.levels)


def _reason(one: _Search, rate: float | None, missed: float | None) -> str:
    lowest = min(trial.rate for trial in one.trials)
    if rate is None:
        once = max((trial.rate for trial in one.trials if trial.met), default=None)
        known = "" if once is None else f" again after {once:,.4g}, which met it once"
        return f"no rate from {lowest:,.4g} requests/s up met it{known}"
    above = [trial.rate for trial in one.trials if not trial.met and trial.rate >= rate]
    if above:
        return f"missed at {min(above):,.4g} requests/s"
    if missed is None and one.bounds.most is not None and rate >= one.bounds.most:
        return "the generator can send no more: the server may answer more"
    return f"{MOST_LEVELS} levels found no rate that misses it: the server may answer more"
