"""Percentiles, and the intervals and verdicts of ratios."""

from math import exp, inf, log

import numpy as np
import pytest
from scipy.stats import norm, t

from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict
from pipework.benchmarks.stats.confidence import (
    Estimate,
    LogVariance,
    latency,
    t_quantile,
    verdict,
    with_pooled_minimum,
)


def test_percentiles_of_1_to_1000_ms_are_known():
    summary = latency(np.arange(1, 1001)[::-1] / 1000)
    assert (summary.p50, summary.p90, summary.p95, summary.p99) == (500.5, 900.1, 950.05, 990.01)
    assert (summary.mean, summary.max, summary.p999) == (500.5, 1000.0, 999.001)


@pytest.mark.parametrize("degrees_of_freedom", [1, 1.3, 2.7, 10.5, 333.3, 1e6])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.99999])
def test_t_quantiles_invert_the_distribution_for_fractional_degrees_of_freedom(
    degrees_of_freedom, probability
):
    value = t_quantile(probability, degrees_of_freedom)
    assert t.sf(value, degrees_of_freedom) == pytest.approx(1 - probability, rel=1e-6)
    assert value == pytest.approx(t.ppf(probability, degrees_of_freedom), rel=1e-9)
    assert t_quantile(probability, inf) == pytest.approx(norm.ppf(probability), rel=1e-9)


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


def test_the_interval_is_symmetric_around_the_log_ratio():
    log_variance = LogVariance(variance=0.01)
    ratio = Estimate(quantity=Quantity.P99, before=10, after=20, log_variance=log_variance).ratio(
        simultaneous=1, tolerance=0
    )
    assert (ratio.low, ratio.high) == pytest.approx((2 * exp(-0.196), 2 * exp(0.196)), rel=1e-3)
