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


@dataclass(kw_only=True, slots=True)
class _Search:
    measure: Measure
    limits: Sequence[SloLimit]
    lowest: float
    levels: list[Level] = field(default_factory=list)
    trials: list[RateTrial] = field(default_factory=list)

    def meets(self, rate: float) -> bool:
        level = self.measure(rate)
        self.levels.append(level)
        self.trials.append(judge(level, self.limits).model_copy(update={"rate": rate}))
        return self.trials[-1].met

    @property
    def exhausted(self) -> bool:
        return len(self.trials) >= MAX_LEVELS - 1  # the last is the best rate's second trial

    def bracket(self, rate: float) -> tuple[float | None, float | None]:
        """Return the largest rate that met and the smallest that missed the objective."""
        met = missed = None
        step = STEP
        while not self.exhausted:
            if self.meets(rate):
                met = rate
                next_rate = rate * step
            else:
                missed = rate
                next_rate = max(self.lowest, rate / step)
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
        while len(self.trials) < MAX_LEVELS and rate >= self.lowest:
            if self.meets(rate):
                return rate
            rate *= BACKOFF
        return None


def search(
    measure: Measure, limits: Sequence[SloLimit], *, peak: float, lowest: float
) -> tuple[SloResult, tuple[Level, ...]]:
    """Find the largest rate (requests/s) that meets the limits, with at most 14 levels.

    `measure` runs one open-loop level at a rate; `peak` is the closed-loop throughput in
    requests/s. Below `lowest` a level has too few requests. Returns the verdict and the levels in
    the order of its trials.
    """
    state = _Search(measure=measure, limits=limits, lowest=lowest)
    met, missed = state.bracket(max(lowest, START * peak))
    if met is not None and missed is not None:
        met = state.bisect(met, missed)
    rate = None if met is None else state.confirm(met)
    result = SloResult(
        limits=tuple(limits),
        rate=rate,
        texts_per_request=state.levels[0].texts_per_request or 1,
        trials=tuple(state.trials),
        reason=_reason(state.trials, rate),
    )
    return result, tuple(state.levels)


def _reason(trials: Sequence[RateTrial], rate: float | None) -> str:
    if rate is None:
        lowest_rate = min(trial.rate for trial in trials)
        once = max((trial.rate for trial in trials if trial.met), default=None)
        detail = "" if once is None else f" twice; {once:,.4g} met it once"
        return f"no rate from {lowest_rate:,.4g} requests/s upwards met it{detail}"
    above = [trial.rate for trial in trials if not trial.met and trial.rate >= rate]
    if above:
        return f"missed at {min(above):,.4g} requests/s"
    return f"no rate in {MAX_LEVELS} levels missed it; the server may be faster"
