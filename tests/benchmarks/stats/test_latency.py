"""Percentiles and histograms are what they claim."""

import numpy as np

from pipework.benchmarks.stats.latency import GRID_MS, histogram, interval, latency


def test_percentiles_of_1_to_1000_ms_are_known():
    found = latency(np.arange(1, 1001)[::-1] / 1000)
    assert (found.p50, found.p90, found.p95, found.p99) == (500.5, 900.1, 950.05, 990.01)
    assert (found.mean, found.max, found.p999) == (500.5, 1000.0, 999.001)


def test_percentiles_agree_with_numpy_on_skewed_latencies():
    latencies_s = np.random.default_rng(3).lognormal(-4, 0.8, 5000)
    found = latency(latencies_s)
    for name in ("p50", "p90", "p95", "p99"):
        expected = 1000 * np.quantile(latencies_s, int(name[1:]) / 100)
        assert abs(getattr(found, name) - expected) < 1e-3


def test_a_histogram_counts_every_latency_once_in_its_bin():
    latencies_s = np.array([0.0101, 0.0102, 0.2])
    found = histogram(latencies_s)
    assert sum(found.counts) == 3
    assert found.counts[0] == 2
    assert found.counts[-1] == 1
    assert found.edges_ms[0] <= 10.1 < found.edges_ms[1]
    assert len(found.edges_ms) == len(found.counts) + 1


def test_latencies_outside_the_grid_are_counted_in_its_end_bins():
    found = histogram(np.array([1e-6, 1e4]))
    assert sum(found.counts) == 2
    assert (found.edges_ms[0], found.edges_ms[-1]) == (GRID_MS[0], GRID_MS[-1])


def test_an_interval_holds_the_true_percentile_nineteen_times_of_twenty():
    random = np.random.default_rng(5)
    for share in (0.5, 0.99):
        found = [interval(np.sort(random.exponential(1, 1000)), share) for _ in range(1000)]
        held = sum(low <= -np.log(1 - share) <= high for low, high in found)
        assert 930 <= held <= 985, share


def test_a_percentile_of_too_few_has_no_interval():
    ones = np.ones(1000)
    assert [interval(ones, share) is None for share in (0.5, 0.95, 0.99, 0.999)] == [0, 0, 0, 1]
    assert [interval(ones[:100], share) is None for share in (0.5, 0.9, 0.95)] == [0, 0, 1]
    assert interval(ones[:1], 0.5) is None
