"""Two targets in turns: in each round the one, the other, the other and the one (ABBA).

A shared machine drifts by more than what one wants to see. Within a round it drifts little, and
what is linear in time cancels, so the rounds' ratios vary by what is left. A ratio of throughput is
the mean over the rounds, its interval Student's from how they differ. A slice alone has too few
requests for a percentile: those of all rounds are put together, each pair of slices in units of
its own typical latency (so that drift is not seen), and the ratio's interval is from what it would
be without one round (the jackknife: R. G. Miller 1974, Biometrika 61).

Shapes: N rounds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean, variance
from typing import Literal

import numpy as np

from pipework.benchmarks.compare.match_levels import shown
from pipework.benchmarks.load.level import Driven
from pipework.benchmarks.load.slo import LEAST_REQUESTS
from pipework.benchmarks.results_schema.comparison import ComparedLevel, Quantity
from pipework.benchmarks.results_schema.level import Level, cost_per_million
from pipework.benchmarks.results_schema.slo import Statistic
from pipework.benchmarks.stats.confidence import Floats
from pipework.benchmarks.stats.latency import PERCENTILES
from pipework.benchmarks.stats.ratios import Estimate, Spread, at_least_pooled
from pipework.progress import Progress

ROUNDS = 5
SLICES = 2 * ROUNDS  # of a level and target
TOLERANCE = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """A short level of load, and the latencies of its answers in seconds."""

    level: Level
    latencies_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Four slices of a level of load, in the order in which they ran: ABBA."""

    first: Slice
    second: Slice
    third: Slice
    fourth: Slice

    @property
    def before(self) -> tuple[Slice, Slice]:
        """The slices of the one that is compared with."""
        return self.first, self.fourth

    @property
    def after(self) -> tuple[Slice, Slice]:
        """The slices of the one that is judged."""
        return self.second, self.third

    @property
    def pairs(self) -> tuple[tuple[Slice, Slice], tuple[Slice, Slice]]:
        """Each slice of the one that is compared with, and the one of the other beside it."""
        return (self.first, self.second), (self.fourth, self.third)


Prices = tuple[float | None, float | None]
# Runs a slice of a load against one of the two: the load, whether it is the one that is judged, and
# the number of the slice, from which random arrivals are drawn.
Measure = Callable[[Driven, bool, int], Slice]


def take_turns(
    loads: Sequence[Driven], measure: Measure, progress: Progress
) -> dict[Driven, tuple[Round, ...]]:
    """Run all rounds of all loads; the loads take turns as well."""
    rounds: dict[Driven, list[Round]] = {load: [] for load in loads}
    progress.begin("in turns", ROUNDS * len(loads) * 4, "slices")
    try:
        for number in range(ROUNDS):
            for load in loads:
                rounds[load].append(_round(load, measure, number, progress))
    finally:
        progress.end()
    return {load: tuple(some) for load, some in rounds.items()}


def _round(load: Driven, measure: Measure, number: int, progress: Progress) -> Round:
    slices = []
    for judged, half in ((False, 0), (True, 0), (True, 1), (False, 1)):
        slices.append(measure(load, judged, 2 * number + half))
        progress.advance(1)
    first, second, third, fourth = slices
    return Round(first=first, second=second, third=third, fourth=fourth)


def compared(
    rounds: dict[Driven, tuple[Round, ...]], prices: Prices = (None, None)
) -> tuple[ComparedLevel, ...]:
    """Turn rounds into ratios; a figure of too few answers is left out.

    `prices` are of an hour of the one that is compared with, and of the one that is judged.
    """
    found = {load: list(_estimates(some)) for load, some in rounds.items()}
    together = max(1, sum(map(len, found.values())))
    widened = _widened([one for some in found.values() for one in some])
    return tuple(
        ComparedLevel(
            name=shown(some[0].before[0].level),
            ratios=tuple(
                widened[one].ratio(together=together, tolerance=TOLERANCE) for one in found[load]
            ),
            failed=(
                _failed([one.level for each in some for one in each.before]),
                _failed([one.level for each in some for one in each.after]),
            ),
            cost_per_million=_costs(found[load], prices),
        )
        for load, some in rounds.items()
    )


def _costs(estimates: Sequence[Estimate], prices: Prices) -> tuple[float, float] | None:
    """Return what a million texts cost on both sides, None where that is not known of both."""
    before, after = prices
    rates = [one for one in estimates if one.quantity is Quantity.TEXTS_PER_S]
    if before is None or after is None or not rates:
        return None
    return cost_per_million(before, rates[0].before), cost_per_million(after, rates[0].after)


def _widened(estimates: Sequence[Estimate]) -> dict[Estimate, Estimate]:
    """Return estimates whose spreads are not smaller than those of their quantity on average."""
    found: dict[Estimate, Estimate] = {}
    for quantity in Quantity:  # percentiles vary more than throughput does
        some = [one for one in estimates if one.quantity is quantity]
        if not some:
            continue
        spreads = at_least_pooled([one.spread for one in some if one.spread is not None])
        found |= {
            one: replace(one, spread=spread) for one, spread in zip(some, spreads, strict=True)
        }
    return found


def _estimates(rounds: Sequence[Round]) -> Iterator[Estimate]:
    rates = [
        [[one.level.texts_per_s for one in side] for side in (each.before, each.after)]
        for each in rounds
    ]
    if all(rate for each in rates for side in each for rate in side):
        logs = [[fmean(log(rate) for rate in side) for side in each] for each in rates]
        before, after = (exp(fmean(side)) for side in zip(*logs, strict=True))
        yield Estimate(
            quantity=Quantity.TEXTS_PER_S,
            before=before,
            after=after,
            spread=_spread([after - before for before, after in logs]),
        )
    for quantity in (Quantity.P50, Quantity.P99):
        estimate = _percentile(quantity, rounds)
        if estimate is not None:
            yield estimate


def _percentile(
    quantity: Literal[Quantity.P50, Quantity.P99], rounds: Sequence[Round]
) -> Estimate | None:
    """Return a percentile of both sides over all rounds, None if one has too few requests."""
    least = LEAST_REQUESTS[Statistic(quantity)]
    pairs = [pair for each in rounds for pair in each.pairs]
    if any(sum(len(one.latencies_s) for one in side) < least for side in zip(*pairs, strict=True)):
        return None
    if not all(one.latencies_s for pair in pairs for one in pair):
        return None
    share, count = PERCENTILES[quantity], len(rounds)
    halves = [[_scaled(pair) for pair in each.pairs] for each in rounds]

    def found(rounds: Sequence[Sequence[Scaled]]) -> tuple[float, float]:
        """Return the logarithm of the percentile of each side."""
        before, after = (
            np.concatenate(side)
            for side in zip(
                *((one.before, one.after) for each in rounds for one in each), strict=True
            )
        )
        return log(float(np.quantile(before, share))), log(float(np.quantile(after, share)))

    before, after = found(halves)
    without = [found([*halves[:at], *halves[at + 1 :]]) for at in range(count)]
    whole = count * (after - before)
    typical_ms = 1000 * exp(fmean(log(one.unit_s) for each in halves for one in each))
    return Estimate(
        quantity=quantity,
        before=typical_ms * exp(before),
        after=typical_ms * exp(after),
        spread=_spread([whole - (count - 1) * (late - soon) for soon, late in without]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """The latencies of two slices that followed each other, in the middle of their medians."""

    before: Floats
    after: Floats
    unit_s: float


def _scaled(pair: tuple[Slice, Slice]) -> Scaled:
    before, after = (np.array(one.latencies_s, np.float64) for one in pair)
    unit_s = float(sqrt(np.median(before) * np.median(after)))
    return Scaled(before=before / unit_s, after=after / unit_s, unit_s=unit_s)


def _spread(log_ratios_N: Sequence[float]) -> Spread:
    rounds = len(log_ratios_N)
    return Spread(variance=variance(log_ratios_N) / rounds, freedom=rounds - 1)


def _failed(levels: Sequence[Level]) -> float:
    failed = sum(level.failed for level in levels)
    return failed / max(failed + sum(level.requests for level in levels), 1)
