"""Alternating measurement detects differences smaller than the drift of the machine."""

from itertools import count

import numpy as np
import pytest

from pipework.benchmarks.compare.abba import ROUNDS, compare_rounds, run_rounds
from pipework.benchmarks.load.level import MeasuredLevel, OfferedLoad
from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict
from pipework.benchmarks.results_schema.level import Arrivals, Level
from pipework.progress import NullProgress

LOADS = (OfferedLoad(concurrency=1), OfferedLoad(concurrency=8))

EMPTY = Level(
    concurrency=1,
    texts_per_request=1,
    duration_s=1,
    requests=0,
    texts=0,
    texts_per_s=0,
    requests_per_s=0,
    latency_ms=None,
    errors={},
)


class DriftingMachine:
    """Machine whose speed drifts linearly from slice to slice, with random noise."""

    def __init__(self, open_level, *, gain, noise=0.005, drift=0.02):
        self.order = []
        self._make, self._gain, self._noise, self._drift = open_level, gain, noise, drift
        self._now, self._chance = count(), np.random.default_rng(3)

    def measure(self, load, is_target, number):
        self.order.append((str(load), is_target, number))
        speed = 1 + self._drift * next(self._now) + self._noise * self._chance.standard_normal()
        speed *= self._gain if is_target else 1
        times_s = self._chance.gamma(2500, 1 / 2500, 200) * 0.01 / speed  # standard deviation 2 %
        level = self._make(rate=100 * speed, p99=40 / speed)
        return MeasuredLevel(level=level, latencies_s=tuple(times_s.tolist()))


def by_figure(levels, quantity):
    return [ratio for level in levels for ratio in level.ratios if ratio.quantity is quantity]


def test_each_round_is_abba_and_both_sides_have_the_same_seeds(open_level):
    machine = DriftingMachine(open_level, gain=1)
    rounds = run_rounds(LOADS, machine.measure, NullProgress())
    assert {str(load): len(load_rounds) for load, load_rounds in rounds.items()} == {
        "1 client": ROUNDS,
        "8 clients": ROUNDS,
    }
    assert [is_target for _, is_target, _ in machine.order[:4]] == [False, True, True, False]
    sides = [
        sorted((load, number) for load, is_target, number in machine.order if is_target is side)
        for side in (False, True)
    ]
    assert sides[0] == sides[1]


@pytest.mark.parametrize("gain", [1.06, 0.94])
def test_a_difference_smaller_than_the_drift_is_detected(open_level, gain):
    levels = compare_rounds(
        run_rounds(LOADS, DriftingMachine(open_level, gain=gain).measure, NullProgress())
    )
    for ratio in by_figure(levels, Quantity.TEXTS_PER_S):
        assert ratio.low < gain < ratio.high
        assert ratio.high / ratio.low < 1.05
        assert ratio.verdict is (RatioVerdict.FASTER if gain > 1 else RatioVerdict.SLOWER)
    for ratio in (*by_figure(levels, Quantity.P50), *by_figure(levels, Quantity.P99)):
        assert ratio.low < 1 / gain < ratio.high
        assert ratio.verdict is (RatioVerdict.FASTER if gain > 1 else RatioVerdict.SLOWER)


def test_drift_alone_is_no_difference(open_level):
    levels = compare_rounds(
        run_rounds(LOADS, DriftingMachine(open_level, gain=1, drift=0.1).measure, NullProgress())
    )
    assert {ratio.verdict for level in levels for ratio in level.ratios} == {
        RatioVerdict.NO_DIFFERENCE
    }


def test_the_reported_values_have_the_reported_ratio(open_level):
    levels = compare_rounds(
        run_rounds(LOADS, DriftingMachine(open_level, gain=1.2).measure, NullProgress())
    )
    for level in levels:
        for ratio in level.ratios:
            assert ratio.ratio == pytest.approx(ratio.after / ratio.before, rel=1e-4)


def test_a_side_without_successes_has_failures_but_no_ratio(open_level):
    def measure(_load, is_target, _number):
        level = open_level(errors={"timeout": 1000} if is_target else None)
        return MeasuredLevel(level=level, latencies_s=() if is_target else (0.01,) * 100)

    (level, _) = compare_rounds(run_rounds(LOADS, measure, NullProgress()))
    assert level.ratios == ()
    assert level.failed == (0, 1)
    assert level.fails_more


def test_percentile_intervals_of_equal_servers_contain_1_despite_drift():
    chance = np.random.default_rng(5)
    held = {Quantity.P50: 0, Quantity.P99: 0}
    for _ in range(100):

        def measure(_load, is_target, number):  # noqa: ARG001
            scale_s = 0.01 * 1.05**number * np.exp(0.05 * chance.standard_normal())
            times_s = chance.gamma(4, 0.25, 60) * scale_s
            return MeasuredLevel(level=EMPTY, latencies_s=tuple(times_s.tolist()))

        (level,) = compare_rounds(run_rounds([OfferedLoad(concurrency=1)], measure, NullProgress()))
        for ratio in level.ratios:
            held[ratio.quantity] += ratio.low <= 1 <= ratio.high
    assert min(held.values()) >= 0.92 * 100  # two simultaneous intervals: 97.5 % each


def test_a_percentile_with_too_few_requests_is_left_out(open_level):
    def measure(_load, _judged, _number):
        return MeasuredLevel(level=open_level(), latencies_s=(0.01, 0.02) * 9)

    (level,) = compare_rounds(run_rounds([OfferedLoad(concurrency=1)], measure, NullProgress()))
    assert [ratio.quantity for ratio in level.ratios] == [Quantity.TEXTS_PER_S, Quantity.P50]


def test_prices_of_both_servers_are_converted_to_costs(open_level):
    def measure(_load, is_target, _number):
        return MeasuredLevel(
            level=open_level(rate=200 if is_target else 100), latencies_s=(0.01,) * 40
        )

    rounds = run_rounds([OfferedLoad(concurrency=1)], measure, NullProgress())
    (level,) = compare_rounds(rounds, (3.6, 3.6))
    assert level.cost_per_million == (1.25, 0.625)  # 800 and 1,600 texts/s
    assert compare_rounds(rounds, (None, 3.6))[0].cost_per_million is None


def test_rates_with_equal_rounded_labels_are_separate_loads(open_level):
    loads = [OfferedLoad(rate=rate, arrivals=Arrivals.POISSON) for rate in (1000.1, 1000.2)]
    machine = DriftingMachine(open_level, gain=1)
    rounds = run_rounds(loads, machine.measure, NullProgress())
    assert [len(load_rounds) for load_rounds in rounds.values()] == [5, 5]
    assert len({ratio.name for ratio in compare_rounds(rounds)}) == 2
