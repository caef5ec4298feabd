"""Intervals hold as often as they say, also where requests are late together."""

from math import log

import numpy as np
import pytest

from pipework.benchmarks.load.level import Driven, level
from pipework.benchmarks.load.level_run import LIMIT, Measured
from pipework.benchmarks.load.offline import level_of_calls
from pipework.benchmarks.load.outcome import Outcome
from pipework.benchmarks.load.steady_state import LAST, Seen, agree
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.comparison import Quantity
from pipework.benchmarks.stats.confidence import SLICES, Series
from pipework.benchmarks.stats.ratios import Estimate, of_interval

WORKLOAD = Workload.synthetic(texts_per_request=1, seed=0)
DRIVEN = Driven(concurrency=1)
DURATION_S, REQUEST_S = 3.0, 0.001
WINDOW_S = DURATION_S / LAST


def slowness(chance, count, memory, size):
    """How many times as slow the machine is, request by request: an autoregressive process."""
    noise = size * np.sqrt(1 - memory**2) * chance.standard_normal(count)
    values = [size * chance.standard_normal()]
    for one in noise:
        values.append(memory * values[-1] + one)
    return np.exp(values[1:])


def measured(chance, *, memory, size):
    """A level that ends as real ones do: when three windows agree, or at its limit."""
    count = round(2 * LIMIT * DURATION_S / REQUEST_S)
    times_s = REQUEST_S * slowness(chance, count, memory, size) * chance.gamma(4, 0.25, count)
    ends_s = np.cumsum(times_s)
    windows, begin = [], 0
    for number in range(1, LIMIT * LAST + 1):
        end = int(np.searchsorted(ends_s, number * WINDOW_S))
        outcomes = [
            Outcome(intended_s=at - took, sent_s=at - took, end_s=at, texts=1, error=None)
            for at, took in zip(
                ends_s[begin:end].tolist(), times_s[begin:end].tolist(), strict=True
            )
        ]
        windows.append((Seen.of(outcomes, WINDOW_S), outcomes))
        begin = end
        if agree([seen for seen, _ in windows], by_chance=False):
            break
    last_s = len(windows) * WINDOW_S
    return level(
        Measured(
            outcomes=[one for _, outcomes in windows for one in outcomes],
            span_s=(last_s - DURATION_S, last_s),
            whole_s=(0.0, last_s),
        ),
        DRIVEN,
        WORKLOAD,
    )


def interval(one, quantity):
    if quantity is Quantity.TEXTS_PER_S:
        return one.texts_per_s, one.interval_texts_per_s
    return getattr(one.latency_ms, quantity), one.interval_ms.get(quantity)


def holds(before, after, quantity):
    """Whether the interval of the ratio of two equal servers holds 1, or None without one."""
    (was, around), (now, about) = interval(before, quantity), interval(after, quantity)
    if around is None or about is None:
        return None
    spread = of_interval(*around, before.freedom) + of_interval(*about, after.freedom)
    estimate = Estimate(quantity=quantity, before=was, after=now, spread=spread)
    found = estimate.ratio(together=1, tolerance=0)
    return found.low <= 1 <= found.high


@pytest.mark.parametrize(
    ("memory", "size"),
    [(0.0, 0.0), (0.97, 0.3), (0.99, 0.3)],  # of this request alone, for 30, and for 100, of 3000
)
def test_intervals_of_equal_servers_hold_1_though_requests_are_slow_together(memory, size):
    chance = np.random.default_rng(7)
    levels = [measured(chance, memory=memory, size=size) for _ in range(80)]
    pairs = [*zip(levels[::2], levels[1::2], strict=True)]
    pairs += [*zip(levels[::2], levels[3::2], strict=False)]
    for quantity in Quantity:
        held = [holds(before, after, quantity) for before, after in pairs]
        known = [one for one in held if one is not None]
        assert known.count(False) <= 0.1 * len(known), quantity
        # Of 3000 requests that are late together a p99 seldom has an interval.
        assert len(known) == len(held) or (quantity is Quantity.P99 and memory), quantity


def test_a_sum_is_as_sure_as_its_slices_are_alike():
    chance = np.random.default_rng(0)
    series, at = Series(slices=90, reported=SLICES), np.arange(90)
    errors = [series.error(at, chance.normal(5, 2, 90)) for _ in range(500)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(2 * SLICES**0.5, rel=0.05)
    assert series.error(at, np.full(90, 7.0)) == pytest.approx(0, abs=1e-9)


def test_what_lasts_makes_a_figure_less_sure_than_what_changes_at_once():
    series, at = Series(slices=60, reported=60), np.arange(60)
    values = np.random.default_rng(0).permutation(np.repeat((1.0, 2.0), 30))
    assert series.error(at, np.sort(values)) > 3 * series.error(at, values)


def test_too_few_answers_or_calls_have_no_interval():
    series = Series(slices=60, reported=60)
    assert series.around(100.0, 0.01, 9) is None
    low, high = series.around(100.0, 0.01, 10)
    assert log(100 / low) == pytest.approx(2.5706 * 0.01, rel=1e-3)
    assert log(high / 100) == pytest.approx(2.5706 * 0.01, rel=1e-3)
    few = level_of_calls(np.full(5, 0.01), stage="tokenizing", batch=1)
    assert (few.interval_texts_per_s, few.interval_ms) == (None, {})


def test_a_percentile_needs_values_on_both_sides():
    series = Series(slices=60, reported=60)
    for count, names in ((2000, {"p50", "p90", "p95", "p99"}), (100, {"p50"})):
        times_s, at = np.linspace(1, 2, count), np.arange(count) * 60 // count
        shuffled_s = np.random.default_rng(1).permutation(times_s)
        assert set(series.percentiles_ms(at, shuffled_s, times_s)) == names


def test_calls_in_this_process_have_intervals_that_hold():
    chance = np.random.default_rng(3)
    held = {"rate": 0, "p50": 0, "p99": 0}
    for _ in range(300):
        times_s = 0.001 * chance.gamma(4, 0.25, 4000)
        one = level_of_calls(times_s, stage="engine", batch=2)
        held["rate"] += one.interval_texts_per_s[0] <= 2000 <= one.interval_texts_per_s[1]
        for name, true_ms in (("p50", 0.91802), ("p99", 2.51128)):
            held[name] += one.interval_ms[name][0] <= true_ms <= one.interval_ms[name][1]
    assert min(held.values()) >= 0.92 * 300
