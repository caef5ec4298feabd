"""Windows agree if they differ by chance or by less than a tenth."""

import numpy as np
import pytest

from pipework.benchmarks.load.level_run import WindowStats, agree
from pipework.benchmarks.load.outcome import RequestOutcome


def window(requests=1000, scale_s=0.01, seed=0, duration_s=2.0):
    times_s = np.random.default_rng(seed).exponential(scale_s, requests)
    outcomes = [
        RequestOutcome(intended_s=0.0, sent_s=0.0, end_s=time_s, texts=2, error=None)
        for time_s in times_s
    ]
    lost = RequestOutcome(intended_s=0.0, sent_s=0.0, end_s=9.0, texts=2, error="timeout")
    return WindowStats.of([*outcomes, lost], duration_s)


def test_window_statistics_contain_only_successes():
    stats = window(requests=1000)
    assert (stats.requests, stats.stored.texts_per_s) == (1000, 1000.0)
    assert stats.low_ms < stats.stored.p99_ms < stats.high_ms < 9000
    assert WindowStats.of([], 1.0).stored.p99_ms is None


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([window(seed=seed) for seed in range(3)], True),
        ([window(seed=seed) for seed in range(2)], False),
        ([window(seed=1), window(seed=2), WindowStats.of([], 1.0)], False),
        ([window(900), window(1000), window(1100)], False),
        ([window(970), window(1000), window(1030)], True),
        ([window(10), window(970), window(1000), window(1030)], True),
        ([window(scale_s=scale_s) for scale_s in (0.01, 0.02, 0.04)], False),
        ([window(100, scale_s=scale_s) for scale_s in (0.01, 0.011, 0.012)], True),
    ],
)
def test_three_windows_agree_by_throughput_and_p99(windows, expected):
    assert agree(windows, random_arrivals=False) is expected


def test_random_arrivals_have_a_larger_tolerance():
    windows = [window(90), window(100), window(110)]
    assert agree(windows, random_arrivals=True)
    assert not agree(windows, random_arrivals=False)
    assert not agree([window(50), window(100), window(150)], random_arrivals=True)
