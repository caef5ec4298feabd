"""Ratio intervals have their stated coverage, and verdicts follow from them."""

from math import exp, inf, log

import numpy as np
import pytest

from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict
from pipework.benchmarks.stats.ratios import (
    Estimate,
    LogVariance,
    variance_of_interval,
    verdict,
    with_pooled_minimum,
)


def test_more_simultaneous_intervals_are_wider():
    estimate = Estimate(
        quantity=Quantity.P99,
        before=1,
        after=1,
        log_variance=LogVariance(variance=0.01, degrees_of_freedom=10),
    )
    widths = [
        log(estimate.ratio(simultaneous=simultaneous, tolerance=0).high)
        for simultaneous in (1, 3, 15)
    ]
    assert widths == pytest.approx(
        [0.2228, 0.2870, 0.3827], rel=1e-3
    )  # tables, for 10 degrees of freedom


def test_ratio_intervals_have_95_percent_coverage():
    chance = np.random.default_rng(1)
    half_width, contained, runs = 0.2, 0, 2000
    for _ in range(runs):
        logs = half_width / 2.571 * chance.standard_normal((2, 6))  # five degrees of freedom each
        means, errors = logs.mean(axis=1), 2.571 * logs.std(axis=1, ddof=1) / 6**0.5
        before, after = (
            variance_of_interval(*np.exp(mean + np.array((-error, error))), 5)
            for mean, error in zip(means, errors, strict=True)
        )
        estimate = Estimate(
            quantity=Quantity.TEXTS_PER_S,
            before=float(np.exp(means[0])),
            after=1.3 * float(np.exp(means[1])),
            log_variance=before + after,
        )
        ratio = estimate.ratio(simultaneous=1, tolerance=0)
        contained += ratio.low <= 1.3 <= ratio.high
    assert contained / runs == pytest.approx(0.95, abs=0.02)


def test_the_variance_of_an_interval_reproduces_the_interval():
    log_variance = variance_of_interval(40, 60, inf)
    assert 1.96 * log_variance.variance**0.5 == pytest.approx(log(60 / 40) / 2, rel=1e-4)
    assert (log_variance + log_variance).variance == 2 * log_variance.variance
    few = variance_of_interval(40, 60, 5)
    assert 2.5706 * few.variance**0.5 == pytest.approx(log(60 / 40) / 2, rel=1e-4)
    assert (few + few).degrees_of_freedom == pytest.approx(10)


def test_variances_are_raised_to_the_pooled_variance():
    calm, wild = (
        LogVariance(variance=0.0, degrees_of_freedom=2),
        LogVariance(variance=0.04, degrees_of_freedom=2),
    )
    assert with_pooled_minimum([calm, wild]) == [
        LogVariance(variance=0.02, degrees_of_freedom=4),
        wild,
    ]


@pytest.mark.parametrize(
    ("quantity", "ratio", "half", "expected"),
    [
        (Quantity.TEXTS_PER_S, 1.2, 1.1, RatioVerdict.FASTER),
        (Quantity.TEXTS_PER_S, 0.8, 1.1, RatioVerdict.SLOWER),
        (Quantity.P99, 1.2, 1.1, RatioVerdict.SLOWER),
        (Quantity.P50, 0.8, 1.1, RatioVerdict.FASTER),
        (Quantity.P50, 0.8, 1.3, RatioVerdict.NO_DIFFERENCE),  # the interval contains 1
        (Quantity.P50, 1.04, 1.01, RatioVerdict.NO_DIFFERENCE),  # within the tolerance
    ],
)
def test_a_verdict_requires_a_difference_beyond_tolerance_and_interval(
    quantity, ratio, half, expected
):
    assert verdict(quantity, ratio, (ratio / half, ratio * half), 0.05) is expected


def test_without_a_variance_there_is_no_verdict():
    estimate = Estimate(quantity=Quantity.P99, before=10, after=20, log_variance=None)
    ratio = estimate.ratio(simultaneous=1, tolerance=0)
    assert (ratio.ratio, ratio.low, ratio.verdict) == (2, None, RatioVerdict.UNKNOWN)


def test_the_interval_is_symmetric_around_the_log_ratio():
    log_variance = LogVariance(variance=0.01)
    ratio = Estimate(quantity=Quantity.P99, before=10, after=20, log_variance=log_variance).ratio(
        simultaneous=1, tolerance=0
    )
    assert (ratio.low, ratio.high) == pytest.approx((2 * exp(-0.196), 2 * exp(0.196)), rel=1e-3)
