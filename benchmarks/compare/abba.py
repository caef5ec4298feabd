"""Alternating measurement of two servers in ABBA rounds: baseline, target, target, baseline.

A shared machine drifts by more than the differences of interest. Within a round, linear drift
cancels. The throughput ratio is the mean over the rounds, with a Student's t interval from their
variation. A slice has too few requests for percentiles: the latencies of all rounds are pooled,
after dividing each pair of slices by its typical latency (to remove drift), and the interval of the
ratio is computed by the jackknife over rounds (R. G. Miller 1974, Biometrika 61).

Shapes: N rounds, R requests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, variance

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
Prices = tuple[float | None, float | None]
# Measures one slice: the load, whether to measure the target (else the baseline), and the number of
# the slice, which seeds random arrivals.
Measure = Callable[[OfferedLoad, bool, int], MeasuredLevel]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Four slices (short levels) of one load.

    They run in the order ABBA: the first of `before`, both of `after`, the second of `before`.
    """

    before: SlicePair
    after: SlicePair

    @property
    def slices(self) -> tuple[MeasuredLevel, ...]:
        """All slices."""
        return (*self.before, *self.after)

    @property
    def pairs(self) -> tuple[SlicePair, SlicePair]:
        """Pairs of consecutive slices, each of the baseline and the target."""
        (first, fourth), (second, third) = self.before, self.after
        return (first, second), (fourth, third)


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
    return Round(before=(first, fourth), after=(second, third))


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
    if all(slice_.level.texts_per_s for each in rounds for slice_ in each.slices):
        before_N = [_log_rate(each.before) for each in rounds]
        after_N = [_log_rate(each.after) for each in rounds]
        log_ratio_N = [after - before for before, after in zip(before_N, after_N, strict=True)]
        yield _estimate(Quantity.TEXTS_PER_S, fmean(before_N), fmean(after_N), log_ratio_N)
    if all(slice_.latencies_s for each in rounds for slice_ in each.slices):
        yield from _percentiles(rounds)


def _log_rate(side: SlicePair) -> float:
    return fmean(log(slice_.level.texts_per_s) for slice_ in side)


def _percentiles(rounds: Sequence[Round]) -> Iterator[Estimate]:
    """Yield the estimates of percentiles over all rounds that have enough requests."""
    scaled = [_scale_pair(pair) for each in rounds for pair in each.pairs]
    requests = min(sum(len(pair.before_R) for pair in scaled), sum(len(p.after_R) for p in scaled))
    typical = fmean(pair.log_unit for pair in scaled)
    count = len(rounds)
    for quantity in (Quantity.P50, Quantity.P99):
        if requests >= MIN_REQUESTS[Statistic(quantity)]:
            before, after = _log_quantiles(scaled, PERCENTILES[quantity])
            pseudo_N = []
            for at in range(count):
                others = scaled[: 2 * at] + scaled[2 * at + 2 :]  # without the pairs of this round
                left_before, left_after = _log_quantiles(others, PERCENTILES[quantity])
                pseudo_N.append(count * (after - before) - (count - 1) * (left_after - left_before))
            yield _estimate(quantity, typical + before, typical + after, pseudo_N)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledPair:
    """Latencies of two consecutive slices, divided by their typical latency.

    `log_unit` is the logarithm of this latency in ms, the geometric mean of their medians.
    """

    before_R: Floats
    after_R: Floats
    log_unit: float


def _scale_pair(pair: SlicePair) -> ScaledPair:
    before_R, after_R = (1000 * np.array(slice_.latencies_s, np.float64) for slice_ in pair)
    log_unit = (log(float(np.median(before_R))) + log(float(np.median(after_R)))) / 2
    unit = exp(log_unit)
    return ScaledPair(before_R=before_R / unit, after_R=after_R / unit, log_unit=log_unit)


def _log_quantiles(pairs: Sequence[ScaledPair], share: float) -> tuple[float, float]:
    """Return the logarithm of a quantile on each side."""
    before = np.quantile(np.concatenate([pair.before_R for pair in pairs]), share)
    after = np.quantile(np.concatenate([pair.after_R for pair in pairs]), share)
    return log(float(before)), log(float(after))


def _estimate(
    quantity: Quantity, log_before: float, log_after: float, log_ratio_N: Sequence[float]
) -> Estimate:
    rounds = len(log_ratio_N)
    log_variance = LogVariance(
        variance=variance(log_ratio_N) / rounds, degrees_of_freedom=rounds - 1
    )
    return Estimate(
        quantity=quantity,
        before=exp(log_before),
        after=exp(log_after),
        log_variance=log_variance,
    )


def _failed_share(levels: Sequence[Level]) -> float:
    failed = sum(level.failed for level in levels)
    return failed / max(failed + sum(level.requests for level in levels), 1)
