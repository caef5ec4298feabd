"""Percentiles and histograms are what they claim."""

import numpy as np

from benchmarks.latency import GRID_MS, histogram, latency


def test_percentiles_of_1_to_1000_ms_are_known():
    found = latency(np.arange(1, 1001)[::-1] / 1000)
    assert (found.p50, found.p90, found.p95, found.p99) == (500.5, 900.1, 950.05, 990.01)
    assert (found.mean, found.max) == (500.5, 1000.0)


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
