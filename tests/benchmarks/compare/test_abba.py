"""Taking turns sees what a drifting machine hides."""

from itertools import count

import numpy as np
import pytest

from pipework.benchmarks.compare.abba import ROUNDS, Slice, compared, take_turns
from pipework.benchmarks.load.level import Driven
from pipework.benchmarks.results_schema.comparison import Quantity, Verdict
from pipework.benchmarks.results_schema.level import Arrivals, Level
from pipework.progress import Silent

LOADS = (Driven(concurrency=1), Driven(concurrency=8))

EMPTY = Level(
    concurrency=1,
    texts_per_request=1,
    duration_s=1,
    requests=0,
    texts=0,
    texts_per_s=0,
    requests_per_s=0,
    latency_ms=None,
    histogram=None,
    errors={},
)


class Machine:
    """Drifts by a tenth from slice to slice, linearly, and jumps by a little."""

    def __init__(self, open_level, *, gain, noise=0.005, drift=0.02):
        self.order = []
        self._make, self._gain, self._noise, self._drift = open_level, gain, noise, drift
        self._now, self._chance = count(), np.random.default_rng(3)

    def measure(self, load, judged, number):
        self.order.append((str(load), judged, number))
        speed = 1 + self._drift * next(self._now) + self._noise * self._chance.standard_normal()
        speed *= self._gain if judged else 1
        times_s = self._chance.gamma(2500, 1 / 2500, 200) * 0.01 / speed  # they differ by 2 %
        level = self._make(rate=100 * speed, p99=40 / speed)
        return Slice(level=level, latencies_s=tuple(times_s.tolist()))


def by_figure(levels, quantity):
    return [one for level in levels for one in level.ratios if one.quantity is quantity]


def test_each_round_is_abba_and_both_sides_see_the_same_arrivals(open_level):
    machine = Machine(open_level, gain=1)
    rounds = take_turns(LOADS, machine.measure, Silent())
    assert {str(load): len(some) for load, some in rounds.items()} == {
        "1 client": ROUNDS,
        "8 clients": ROUNDS,
    }
    assert [judged for _, judged, _ in machine.order[:4]] == [False, True, True, False]
    sides = [
        sorted((load, number) for load, judged, number in machine.order if judged is side)
        for side in (False, True)
    ]
    assert sides[0] == sides[1]


@pytest.mark.parametrize("gain", [1.06, 0.94])
def test_a_difference_smaller_than_the_drift_is_seen(open_level, gain):
    found = compared(take_turns(LOADS, Machine(open_level, gain=gain).measure, Silent()))
    for ratio in by_figure(found, Quantity.TEXTS_PER_S):
        assert ratio.low < gain < ratio.high
        assert ratio.high / ratio.low < 1.05
        assert ratio.verdict is (Verdict.FASTER if gain > 1 else Verdict.SLOWER)
    for ratio in (*by_figure(found, Quantity.P50), *by_figure(found, Quantity.P99)):
        assert ratio.low < 1 / gain < ratio.high
        assert ratio.verdict is (Verdict.FASTER if gain > 1 else Verdict.SLOWER)


def test_the_drift_alone_is_no_difference(open_level):
    found = compared(take_turns(LOADS, Machine(open_level, gain=1, drift=0.1).measure, Silent()))
    assert {one.verdict for level in found for one in level.ratios} == {Verdict.NO_DIFFERENCE}


def test_the_values_shown_have_the_ratio_shown(open_level):
    found = compared(take_turns(LOADS, Machine(open_level, gain=1.2).measure, Silent()))
    for level in found:
        for one in level.ratios:
            assert one.ratio == pytest.approx(one.after / one.before, rel=1e-4)


def test_a_side_that_answers_nothing_has_no_ratio_but_its_failures(open_level):
    def measure(_load, judged, _number):
        level = open_level(errors={"timeout": 1000} if judged else None)
        return Slice(level=level, latencies_s=() if judged else (0.01,) * 100)

    (level, _) = compared(take_turns(LOADS, measure, Silent()))
    assert level.ratios == ()
    assert level.failed == (0, 1)
    assert level.fails_more


def test_percentiles_of_equal_servers_hold_1_though_the_machine_drifts_and_slices_differ():
    chance = np.random.default_rng(5)
    held = {Quantity.P50: 0, Quantity.P99: 0}
    for _ in range(100):

        def measure(_load, judged, number):  # noqa: ARG001
            scale_s = 0.01 * 1.05**number * np.exp(0.05 * chance.standard_normal())
            times_s = chance.gamma(4, 0.25, 60) * scale_s
            return Slice(level=EMPTY, latencies_s=tuple(times_s.tolist()))

        (level,) = compared(take_turns([Driven(concurrency=1)], measure, Silent()))
        for one in level.ratios:
            held[one.quantity] += one.low <= 1 <= one.high
    assert min(held.values()) >= 0.92 * 100  # two together: 97.5 % each


def test_a_percentile_of_too_few_requests_is_left_out(open_level):
    def measure(_load, _judged, _number):
        return Slice(level=open_level(), latencies_s=(0.01, 0.02) * 9)

    (level,) = compared(take_turns([Driven(concurrency=1)], measure, Silent()))
    assert [one.quantity for one in level.ratios] == [Quantity.TEXTS_PER_S, Quantity.P50]


def test_prices_of_both_become_costs(open_level):
    def measure(_load, judged, _number):
        return Slice(level=open_level(rate=200 if judged else 100), latencies_s=(0.01,) * 40)

    rounds = take_turns([Driven(concurrency=1)], measure, Silent())
    (level,) = compared(rounds, (3.6, 3.6))
    assert level.cost_per_million == (1.25, 0.625)  # 800 and 1,600 texts/s
    assert compared(rounds, (None, 3.6))[0].cost_per_million is None


def test_rates_that_are_shown_alike_are_loads_of_their_own(open_level):
    loads = [Driven(rate=rate, arrivals=Arrivals.POISSON) for rate in (1000.1, 1000.2)]
    machine = Machine(open_level, gain=1)
    rounds = take_turns(loads, machine.measure, Silent())
    assert [len(some) for some in rounds.values()] == [5, 5]
    assert len({one.name for one in compared(rounds)}) == 2
