"""Percentiles, intervals and histograms are correct."""

import numpy as np

from pipework.benchmarks.stats.latency import GRID_MS, histogram, interval, latency


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
