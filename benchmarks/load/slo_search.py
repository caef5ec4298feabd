"""Search for the largest request rate that meets a service level objective.

Levels are noisy, so latency is only approximately monotonic in the rate. The search brackets the
limit starting from the closed-loop peak, bisects, and measures the best rate again: the objective
was met by two trials at or above the reported rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

from pipework.benchmarks.load.slo import judge
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import RateTrial, SloLimit, SloResult

Measure = Callable[[float], Level]
MAX_LEVELS = 14
START = 0.8  # first rate, as a share of the closed-loop peak
STEP = 1.3
BRACKET_RATIO = 1.05  # bisection stops at this ratio of the lowest missed to the highest met rate
BACKOFF = 0.9  # factor by which a rate is lowered if its second trial misses the objective


@dataclass(frozen=True, kw_only=True, slots=True)
class RateBounds:
    """Lowest and highest rates that can be measured, in requests/s.

    Below `lowest` a level has too few requests; `highest` is the limit of the load generator.
    """

    lowest: float
    highest: float | None = None

    def within(self, rate: float) -> float:
        """Return the nearest rate within the bounds."""
        return max(self.lowest, rate if self.highest is None else min(rate, self.highest))


@dataclass(kw_only=True, slots=True)
class _Search:
    measure: Measure
    limits: Sequence[SloLimit]
    bounds: RateBounds
    levels: list[Level] = field(default_factory=list)
    trials: list[RateTrial] = field(default_factory=list)

    def meets(self, rate: float) -> bool:
        level = self.measure(rate)
        self.levels.append(level)
        self.trials.append(judge(level, self.limits).model_copy(update={"rate": rate}))
        return self.trials[-1].met

    @property
    def exhausted(self) -> bool:
        return (
            len(self.trials) >= MAX_LEVELS - 1
        )  # the last level is the second trial of the best rate

    def bracket(self, rate: float) -> tuple[float | None, float | None]:
        """Return the largest rate that met and the smallest that missed the objective."""
        met = missed = None
        step = STEP
        while not self.exhausted:
            if self.meets(rate):
                met, next_rate = rate, self.bounds.within(rate * step)
            else:
                missed, next_rate = rate, self.bounds.within(rate / step)
            if (met and missed) or next_rate == rate:
                break
            rate, step = next_rate, step * STEP  # growing steps reach distant rates quickly
        return met, missed

    def bisect(self, met: float, missed: float) -> float:
        while missed / met > BRACKET_RATIO and not self.exhausted:
            middle = sqrt(met * missed)
            if self.meets(middle):
                met = middle
            else:
                missed = middle
        return met

    def confirm(self, rate: float) -> float | None:
        """Return the largest rate confirmed by a second trial; lower the rate after each miss.

        A lower rate needs only one trial, because the higher rate has met the objective once.
        """
        while len(self.trials) < MAX_LEVELS and rate >= self.bounds.lowest:
            if self.meets(rate):
                return rate
            rate *= BACKOFF
        return None


def search(
    measure: Measure, limits: Sequence[SloLimit], *, peak: float, bounds: RateBounds
) -> tuple[SloResult, tuple[Level, ...]]:
    """Find the largest rate (requests/s) that meets the limits, with at most 14 levels.

    `measure` runs one open-loop level at a rate; `peak` is the closed-loop throughput in
    requests/s. Returns the verdict and the levels in the order of its trials.
    """
    state = _Search(measure=measure, limits=limits, bounds=bounds)
    met, missed = state.bracket(bounds.within(START * peak))
    if met is not None and missed is not None:
        met = state.bisect(met, missed)
    rate = None if met is None else state.confirm(met)
    result = SloResult(
        limits=tuple(limits),
        rate=rate,
        texts_per_request=state.levels[0].texts_per_request or 1,
        trials=tuple(state.trials),
        least=round(bounds.lowest, 3),
        peak=peak,
        reason=_reason(state, rate, missed),
    )
    return result, tuple(state.levels)


def _reason(state: _Search, rate: float | None, missed: float | None) -> str:
    lowest_rate = min(trial.rate for trial in state.trials)
    if rate is None:
        once = max((trial.rate for trial in state.trials if trial.met), default=None)
        detail = "" if once is None else f" twice; {once:,.4g} met it once"
        return f"no rate from {lowest_rate:,.4g} requests/s upwards met it{detail}"
    above = [trial.rate for trial in state.trials if not trial.met and trial.rate >= rate]
    if above:
        return f"missed at {min(above):,.4g} requests/s"
    if missed is None and state.bounds.highest is not None and rate >= state.bounds.highest:
        return "the load generator reached its maximum rate; the server may be faster"
    return f"no rate in {MAX_LEVELS} levels missed it; the server may be faster"
