"""Intervals have their stated coverage, also for correlated latencies."""

from math import exp, inf, log

import numpy as np
import pytest
from scipy.stats import norm, t

from pipework.benchmarks.load.level import OfferedLoad, level
from pipework.benchmarks.load.level_run import (
    LAST,
    LIMIT_FACTOR,
    LevelMeasurement,
    WindowStats,
    agree,
)
from pipework.benchmarks.load.offline import level_of_calls
from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict
from pipework.benchmarks.stats.confidence import (
    GRID_MS,
    SLICES,
    Estimate,
    LogVariance,
    SlicedSeries,
    histogram,
    interval,
    latency,
    t_quantile,
    variance_of_interval,
    verdict,
    with_pooled_minimum,
)


def test_percentiles_of_1_to_1000_ms_are_known():
    summary = latency(np.arange(1, 1001)[::-1] / 1000)
    assert (summary.p50, summary.p90, summary.p95, summary.p99) == (500.5, 900.1, 950.05, 990.01)
    assert (summary.mean, summary.max, summary.p999) == (500.5, 1000.0, 999.001)


def test_percentiles_agree_with_numpy_on_skewed_latencies():
    latencies_s = np.random.default_rng(3).lognormal(-4, 0.8, 5000)
    summary = latency(latencies_s)
    for name in ("p50", "p90", "p95", "p99"):
        expected = 1000 * np.quantile(latencies_s, int(name[1:]) / 100)
        assert abs(getattr(summary, name) - expected) < 1e-3


def test_a_histogram_counts_every_latency_once_in_its_bin():
    latencies_s = np.array([0.0101, 0.0102, 0.2])
    counted = histogram(latencies_s)
    assert sum(counted.counts) == 3
    assert counted.counts[0] == 2
    assert counted.counts[-1] == 1
    assert counted.edges_ms[0] <= 10.1 < counted.edges_ms[1]
    assert len(counted.edges_ms) == len(counted.counts) + 1


def test_latencies_outside_the_grid_are_counted_in_its_end_bins():
    counted = histogram(np.array([1e-6, 1e4]))
    assert sum(counted.counts) == 2
    assert (counted.edges_ms[0], counted.edges_ms[-1]) == (GRID_MS[0], GRID_MS[-1])


def test_an_interval_contains_the_true_percentile_in_95_percent_of_cases():
    random = np.random.default_rng(5)
    for share in (0.5, 0.99):
        intervals = [interval(np.sort(random.exponential(1, 1000)), share) for _ in range(1000)]
        contained = sum(low <= -np.log(1 - share) <= high for low, high in intervals)
        assert 930 <= contained <= 985, share


def test_a_percentile_of_too_few_values_has_no_interval():
    ones = np.ones(1000)
    assert [interval(ones, share) is None for share in (0.5, 0.95, 0.99, 0.999)] == [0, 0, 0, 1]
    assert [interval(ones[:100], share) is None for share in (0.5, 0.9, 0.95)] == [0, 0, 1]
    assert interval(ones[:1], 0.5) is None


WORKLOAD = Workload.synthetic(texts_per_request=1, seed=0)
LOAD = OfferedLoad(concurrency=1)
DURATION_S, REQUEST_S = 3.0, 0.001
WINDOW_S = DURATION_S / LAST


def slowness(chance, count, memory, size):
    """Return the relative slowness of the machine per request: an autoregressive process."""
    noise = size * np.sqrt(1 - memory**2) * chance.standard_normal(count)
    values = [size * chance.standard_normal()]
    for noise_value in noise:
        values.append(memory * values[-1] + noise_value)
    return np.exp(values[1:])


def measured_level(chance, *, memory, size):
    """Return a level that ends like a real level: when three windows agree, or at its limit."""
    count = round(2 * LIMIT_FACTOR * DURATION_S / REQUEST_S)
    times_s = REQUEST_S * slowness(chance, count, memory, size) * chance.gamma(4, 0.25, count)
    ends_s = np.cumsum(times_s)
    windows, begin = [], 0
    for number in range(1, LIMIT_FACTOR * LAST + 1):
        end = int(np.searchsorted(ends_s, number * WINDOW_S))
        outcomes = [
            RequestOutcome(intended_s=at - took, sent_s=at - took, end_s=at, texts=1, error=None)
            for at, took in zip(
                ends_s[begin:end].tolist(), times_s[begin:end].tolist(), strict=True
            )
        ]
        windows.append((WindowStats.of(outcomes, WINDOW_S), outcomes))
        begin = end
        if agree([stats for stats, _ in windows], random_arrivals=False):
            break
    last_s = len(windows) * WINDOW_S
    return level(
        LevelMeasurement(
            outcomes=[outcome for _, outcomes in windows for outcome in outcomes],
            span_s=(last_s - DURATION_S, last_s),
            whole_s=(0.0, last_s),
        ),
        LOAD,
        WORKLOAD,
    )


def interval_of(level, quantity):
    if quantity is Quantity.TEXTS_PER_S:
        return level.texts_per_s, level.interval_texts_per_s
    return getattr(level.latency_ms, quantity), level.interval_ms.get(quantity)


def interval_contains_1(before, after, quantity):
    """Return whether the interval of the ratio of two equal servers contains 1; None without it."""
    (was, before_interval), (now, after_interval) = (
        interval_of(before, quantity),
        interval_of(after, quantity),
    )
    if before_interval is None or after_interval is None:
        return None
    log_variance = variance_of_interval(*before_interval, before.freedom) + variance_of_interval(
        *after_interval, after.freedom
    )
    estimate = Estimate(quantity=quantity, before=was, after=now, log_variance=log_variance)
    ratio = estimate.ratio(simultaneous=1, tolerance=0)
    return ratio.low <= 1 <= ratio.high


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        (0.0, 0.0),
        pytest.param(0.97, 0.3, marks=pytest.mark.slow),
        pytest.param(0.99, 0.3, marks=pytest.mark.slow),
    ],  # correlation over 0, 30 and 100 of 3000 requests
)
def test_ratio_intervals_of_equal_servers_contain_1_for_correlated_latencies(memory, size):
    chance = np.random.default_rng(7)
    levels = [measured_level(chance, memory=memory, size=size) for _ in range(80)]
    pairs = [*zip(levels[::2], levels[1::2], strict=True)]
    pairs += [*zip(levels[::2], levels[3::2], strict=False)]
    for quantity in Quantity:
        contained = [interval_contains_1(before, after, quantity) for before, after in pairs]
        known = [value for value in contained if value is not None]
        assert known.count(False) <= 0.1 * len(known), quantity
        # The p99 of 3000 strongly correlated requests rarely has an interval.
        assert len(known) == len(contained) or (quantity is Quantity.P99 and memory), quantity


@pytest.mark.parametrize(
    ("probability", "degrees_of_freedom", "table"),
    [
        (0.975, 1, 12.706),
        (0.975, 4, 2.7764),
        (0.975, 10, 2.2281),
        (0.975, 30, 2.0423),
        (0.975, inf, 1.95996),
        (0.9995, 2, 31.599),
        (0.9995, 5, 6.8688),
        (0.9995, 120, 3.3735),
        (0.75, 3, 0.7649),
    ],
)
def test_t_quantiles_are_those_of_published_tables(probability, degrees_of_freedom, table):
    assert t_quantile(probability, degrees_of_freedom) == pytest.approx(table, rel=1e-4)


@pytest.mark.parametrize("degrees_of_freedom", [1.3, 2.7, 10.5, 333.3, 1e6])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.99999])
def test_t_quantiles_invert_the_distribution_for_fractional_degrees_of_freedom(
    degrees_of_freedom, probability
):
    value = t_quantile(probability, degrees_of_freedom)
    assert t.sf(value, degrees_of_freedom) == pytest.approx(1 - probability, rel=1e-6)
    assert value == pytest.approx(t.ppf(probability, degrees_of_freedom), rel=1e-9)
    assert t_quantile(probability, inf) == pytest.approx(norm.ppf(probability), rel=1e-9)


def test_the_standard_error_of_independent_slices_is_that_of_their_sum():
    chance = np.random.default_rng(0)
    series, at = SlicedSeries(slices=90, reported=SLICES), np.arange(90)
    errors = [series.standard_error(at, chance.normal(5, 2, 90)) for _ in range(500)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(2 * SLICES**0.5, rel=0.05)
    assert series.standard_error(at, np.full(90, 7.0)) == pytest.approx(0, abs=1e-9)


def test_slow_changes_give_a_larger_standard_error_than_fast_changes():
    series, at = SlicedSeries(slices=60, reported=60), np.arange(60)
    values = np.random.default_rng(0).permutation(np.repeat((1.0, 2.0), 30))
    assert series.standard_error(at, np.sort(values)) > 3 * series.standard_error(at, values)


def test_too_few_requests_or_calls_have_no_interval():
    series = SlicedSeries(slices=60, reported=60)
    assert series.rate_interval(100.0, 0.01, 9) is None
    low, high = series.rate_interval(100.0, 0.01, 10)
    assert log(100 / low) == pytest.approx(2.5706 * 0.01, rel=1e-3)
    assert log(high / 100) == pytest.approx(2.5706 * 0.01, rel=1e-3)
    few = level_of_calls(np.full(5, 0.01), stage="tokenizing", batch=1)
    assert (few.interval_texts_per_s, few.interval_ms) == (None, {})


def test_a_percentile_needs_values_on_both_sides():
    series = SlicedSeries(slices=60, reported=60)
    for count, names in ((2000, {"p50", "p90", "p95", "p99"}), (100, {"p50"})):
        times_s, at = np.linspace(1, 2, count), np.arange(count) * 60 // count
        shuffled_s = np.random.default_rng(1).permutation(times_s)
        assert set(series.percentile_intervals_ms(at, shuffled_s, times_s)) == names


def test_intervals_of_offline_calls_have_their_coverage():
    chance = np.random.default_rng(3)
    held = {"rate": 0, "p50": 0, "p99": 0}
    for _ in range(300):
        times_s = 0.001 * chance.gamma(4, 0.25, 4000)
        level = level_of_calls(times_s, stage="engine", batch=2)
        held["rate"] += level.interval_texts_per_s[0] <= 2000 <= level.interval_texts_per_s[1]
        for name, true_ms in (("p50", 0.91802), ("p99", 2.51128)):
            held[name] += level.interval_ms[name][0] <= true_ms <= level.interval_ms[name][1]
    assert min(held.values()) >= 0.92 * 300


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
