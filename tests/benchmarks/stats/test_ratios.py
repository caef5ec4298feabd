"""Intervals hold as often as they say, and a difference is seen when it is there."""

from math import exp, inf, log

import numpy as np
import pytest

from pipework.benchmarks.results_schema.comparison import Quantity, Verdict
from pipework.benchmarks.stats.ratios import Estimate, Spread, at_least_pooled, of_interval, verdict


def test_more_figures_widen_each_interval():
    estimate = Estimate(
        quantity=Quantity.P99, before=1, after=1, spread=Spread(variance=0.01, freedom=10)
    )
    widths = [log(estimate.ratio(together=many, tolerance=0).high) for many in (1, 3, 15)]
    assert widths == pytest.approx([0.2228, 0.2870, 0.3827], rel=1e-3)  # any table, for 10


def test_intervals_of_ratios_hold_in_95_of_100_runs():
    chance = np.random.default_rng(1)
    half, held, runs = 0.2, 0, 2000
    for _ in range(runs):
        logs = half / 2.571 * chance.standard_normal((2, 6))  # of five degrees of freedom each
        means, errors = logs.mean(axis=1), 2.571 * logs.std(axis=1, ddof=1) / 6**0.5
        before, after = (
            of_interval(*np.exp(mean + np.array((-error, error))), 5)
            for mean, error in zip(means, errors, strict=True)
        )
        estimate = Estimate(
            quantity=Quantity.TEXTS_PER_S,
            before=float(np.exp(means[0])),
            after=1.3 * float(np.exp(means[1])),
            spread=before + after,
        )
        found = estimate.ratio(together=1, tolerance=0)
        held += found.low <= 1.3 <= found.high
    assert held / runs == pytest.approx(0.95, abs=0.02)


def test_a_spread_from_an_interval_gives_the_interval_back():
    spread = of_interval(40, 60, inf)
    assert 1.96 * spread.variance**0.5 == pytest.approx(log(60 / 40) / 2, rel=1e-4)
    assert (spread + spread).variance == 2 * spread.variance
    few = of_interval(40, 60, 5)
    assert 2.5706 * few.variance**0.5 == pytest.approx(log(60 / 40) / 2, rel=1e-4)
    assert (few + few).freedom == pytest.approx(10)


def test_values_that_lie_together_by_chance_take_the_spread_of_all():
    calm, wild = Spread(variance=0.0, freedom=2), Spread(variance=0.04, freedom=2)
    assert at_least_pooled([calm, wild]) == [Spread(variance=0.02, freedom=4), wild]


@pytest.mark.parametrize(
    ("quantity", "ratio", "half", "seen"),
    [
        (Quantity.TEXTS_PER_S, 1.2, 1.1, Verdict.FASTER),
        (Quantity.TEXTS_PER_S, 0.8, 1.1, Verdict.SLOWER),
        (Quantity.P99, 1.2, 1.1, Verdict.SLOWER),
        (Quantity.P50, 0.8, 1.1, Verdict.FASTER),
        (Quantity.P50, 0.8, 1.3, Verdict.NO_DIFFERENCE),  # the interval holds 1
        (Quantity.P50, 1.04, 1.01, Verdict.NO_DIFFERENCE),  # within the tolerance
    ],
)
def test_a_difference_is_one_beyond_tolerance_and_chance(quantity, ratio, half, seen):
    assert verdict(quantity, ratio, (ratio / half, ratio * half), 0.05) is seen


def test_without_a_spread_there_is_no_verdict():
    estimate = Estimate(quantity=Quantity.P99, before=10, after=20, spread=None)
    found = estimate.ratio(together=1, tolerance=0)
    assert (found.ratio, found.low, found.verdict) == (2, None, Verdict.UNKNOWN)


def test_the_interval_lies_around_the_ratio():
    spread = Spread(variance=0.01)
    found = Estimate(quantity=Quantity.P99, before=10, after=20, spread=spread).ratio(
        together=1, tolerance=0
    )
    assert (found.low, found.high) == pytest.approx((2 * exp(-0.196), 2 * exp(0.196)), rel=1e-3)
