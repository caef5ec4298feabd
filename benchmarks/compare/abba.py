"""Alternating measurement of two servers in ABBA rounds: baseline, target, target, baseline.

A shared machine drifts by more than the differences of interest. Within a round, linear drift
cancels. The throughput ratio is the mean over the rounds, with a Student's t interval from their
variation. A slice has too few requests for percentiles: the latencies of all rounds are pooled,
after dividing each pair of slices by its typical latency (to remove drift), and the interval of the
ratio is computed by the jackknife over rounds (R. G. Miller 1974, Biometrika 61).

Shapes: N rounds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean, variance
from typing import Literal

import numpy as np

from pipework.benchmarks.load.level import MeasuredLevel, OfferedLoad
from pipework.benchmarks.load.slo import MIN_REQUESTS
from pipework.benchmarks.results_schema.comparison import ComparedLevel, Quantity
from pipework.benchmarks.results_schema.level import Level, cost_per_million
from pipework.benchmarks.results_schema.results import Statistic
from pipework.benchmarks.stats.confidence import (
    PERCENTILES,
    Estimate,
    Floats,
    LogVariance,
    with_pooled_minimum,
)
from pipework.progress import Progress

ROUNDS = 5
SLICES = 2 * ROUNDS  # per level and server
TOLERANCE = 0.02
SlicePair = tuple[MeasuredLevel, MeasuredLevel]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Four slices (short levels) of one load, in the order in which they ran: ABBA."""

    first: MeasuredLevel
    second: MeasuredLevel
    third: MeasuredLevel
    fourth: MeasuredLevel

    @property
    def before(self) -> SlicePair:
        """Slices of the baseline."""
        return self.first, self.fourth

    @property
    def after(self) -> SlicePair:
        """Slices of the target."""
        return self.second, self.third

    @property
    def pairs(self) -> tuple[SlicePair, SlicePair]:
        """Pairs of consecutive slices, each of the baseline and the target."""
        return (self.first, self.second), (self.fourth, self.third)


Prices = tuple[float | None, float | None]
# Measures one slice: the load, whether to measure the target (else the baseline), and the number of
# the slice, which seeds random arrivals.
Measure = Callable[[OfferedLoad, bool, int], MeasuredLevel]


def run_rounds(
    loads: Sequence[OfferedLoad], measure: Measure, progress: Progress
) -> dict[OfferedLoad, tuple[Round, ...]]:
    """Measure all rounds of all loads; the loads alternate too."""
    rounds: dict[OfferedLoad, list[Round]] = {load: [] for load in loads}
    with progress.stage("alternating", ROUNDS * len(loads) * 4, "slices"):
        for number in range(ROUNDS):
            for load in loads:
                rounds[load].append(_round(load, measure, number, progress))
    return {load: tuple(load_rounds) for load, load_rounds in rounds.items()}


def _round(load: OfferedLoad, measure: Measure, number: int, progress: Progress) -> Round:
    slices = []
    for is_target, half in ((False, 0), (True, 0), (True, 1), (False, 1)):
        slices.append(measure(load, is_target, 2 * number + half))
        progress.advance(1)
    first, second, third, fourth = slices
    return Round(first=first, second=second, third=third, fourth=fourth)


def compare_rounds(
    rounds: dict[OfferedLoad, tuple[Round, ...]], prices: Prices = (None, None)
) -> tuple[ComparedLevel, ...]:
    """Compute ratios from the rounds; quantities with too few requests are left out.

    `prices` are the prices per hour of the baseline and the target.
    """
    estimates = {load: list(_estimates(load_rounds)) for load, load_rounds in rounds.items()}
    simultaneous = max(1, sum(map(len, estimates.values())))
    widened = _widened([estimate for of_load in estimates.values() for estimate in of_load])
    return tuple(
        ComparedLevel(
            name=f"{load}",
            ratios=tuple(
                widened[estimate].ratio(simultaneous=simultaneous, tolerance=TOLERANCE)
                for estimate in estimates[load]
            ),
            failed=(
                _failed_share([slice_.level for each in load_rounds for slice_ in each.before]),
                _failed_share([slice_.level for each in load_rounds for slice_ in each.after]),
            ),
            cost_per_million=_costs(estimates[load], prices),
        )
        for load, load_rounds in rounds.items()
    )


def _costs(estimates: Sequence[Estimate], prices: Prices) -> tuple[float, float] | None:
    """Return the cost of a million texts on both sides, None if a price or rate is unknown."""
    for estimate in estimates:
        if estimate.quantity is Quantity.TEXTS_PER_S:
            before = cost_per_million(prices[0], estimate.before)
            after = cost_per_million(prices[1], estimate.after)
            return None if before is None or after is None else (before, after)
    return None


def _widened(estimates: Sequence[Estimate]) -> dict[Estimate, Estimate]:
    """Return the estimates with variances of at least the pooled variance of their quantity."""
    widened: dict[Estimate, Estimate] = {}
    for quantity in Quantity:  # pooled separately: percentiles vary more than throughput
        of_quantity = [estimate for estimate in estimates if estimate.quantity is quantity]
        if not of_quantity:
            continue
        log_variances = with_pooled_minimum([estimate.log_variance for estimate in of_quantity])
        widened |= {
            estimate: replace(estimate, log_variance=log_variance)
            for estimate, log_variance in zip(of_quantity, log_variances, strict=True)
        }
    return widened


def _estimates(rounds: Sequence[Round]) -> Iterator[Estimate]:
    rates = [
        [[slice_.level.texts_per_s for slice_ in side] for side in (current.before, current.after)]
        for current in rounds
    ]
    if all(rate for current in rates for side in current for rate in side):
        logs = [[fmean(log(rate) for rate in side) for side in current] for current in rates]
        before, after = (exp(fmean(side)) for side in zip(*logs, strict=True))
        yield Estimate(
            quantity=Quantity.TEXTS_PER_S,
            before=before,
            after=after,
            log_variance=_log_variance([after - before for before, after in logs]),
        )
    for quantity in (Quantity.P50, Quantity.P99):
        estimate = _percentile(quantity, rounds)
        if estimate is not None:
            yield estimate


def _percentile(
    quantity: Literal[Quantity.P50, Quantity.P99], rounds: Sequence[Round]
) -> Estimate | None:
    """Return the estimate of a percentile over all rounds, None if a side has too few requests."""
    min_requests = MIN_REQUESTS[Statistic(quantity)]
    pairs = [pair for each in rounds for pair in each.pairs]
    if any(
        sum(len(slice_.latencies_s) for slice_ in side) < min_requests
        for side in zip(*pairs, strict=True)
    ):
        return None
    if not all(slice_.latencies_s for pair in pairs for slice_ in pair):
        return None
    share, count = PERCENTILES[quantity], len(rounds)
    halves = [[_scale_pair(pair) for pair in each.pairs] for each in rounds]

    def log_percentiles(rounds: Sequence[Sequence[ScaledPair]]) -> tuple[float, float]:
        """Return the logarithm of the percentile on each side."""
        before, after = (
            np.concatenate(side)
            for side in zip(
                *((pair.before, pair.after) for each in rounds for pair in each), strict=True
            )
        )
        return log(float(np.quantile(before, share))), log(float(np.quantile(after, share)))

    before, after = log_percentiles(halves)
    leave_one_out = [log_percentiles([*halves[:at], *halves[at + 1 :]]) for at in range(count)]
    weighted = count * (after - before)
    typical_ms = 1000 * exp(fmean(log(pair.unit_s) for each in halves for pair in each))
    return Estimate(
        quantity=quantity,
        before=typical_ms * exp(before),
        after=typical_ms * exp(after),
        log_variance=_log_variance(
            [weighted - (count - 1) * (after - before) for before, after in leave_one_out]
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledPair:
    """Latencies of two consecutive slices, divided by `unit_s`.

    `unit_s` is the geometric mean of their median latencies in seconds.
    """

    before: Floats
    after: Floats
    unit_s: float


def _scale_pair(pair: SlicePair) -> ScaledPair:
    before, after = (np.array(slice_.latencies_s, np.float64) for slice_ in pair)
    unit_s = float(sqrt(np.median(before) * np.median(after)))
    return ScaledPair(before=before / unit_s, after=after / unit_s, unit_s=unit_s)


def _log_variance(log_ratios_N: Sequence[float]) -> LogVariance:
    rounds = len(log_ratios_N)
    return LogVariance(variance=variance(log_ratios_N) / rounds, degrees_of_freedom=rounds - 1)


def _failed_share(levels: Sequence[Level]) -> float:
    failed = sum(level.failed for level in levels)
    return failed / max(failed + sum(level.requests for level in levels), 1)
