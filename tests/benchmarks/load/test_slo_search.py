"""The search finds the known maximum rate of simulated servers, even with noise."""

import numpy as np
import pytest

from pipework.benchmarks.load.slo import check_slo, parse_slo
from pipework.benchmarks.load.slo_search import MAX_LEVELS, search
from pipework.errors import CheckFailedError

P99 = parse_slo(["p99=50ms"])


def test_the_hint_for_high_latency_is_more_resources(open_level):
    result, _ = search(lambda rate: open_level(rate, 90), P99, peak=100, lowest=1)
    with pytest.raises(CheckFailedError) as caught:
        check_slo(result)
    assert caught.value.hint.startswith("give the server more resources")


def test_a_rate_that_is_never_confirmed_is_reported(open_level):
    measured = []

    def lucky_server(rate):
        measured.append(rate)
        return open_level(rate, 40 if len(measured) == 1 else 60)

    result, _ = search(lucky_server, P99, peak=50, lowest=30)
    assert result.rate is None
    assert "upwards met it twice; 40 met it once" in result.reason


@pytest.fixture
def server(open_level):
    """Return a function that simulates a server with a p99 of 50 ms at the rate `edge`."""

    def make(edge, noise=0.0, seed=0):
        chance = np.random.default_rng(seed)

        def measure(rate):
            load = rate / edge * (1 + noise * chance.standard_normal())
            return open_level(rate, 50 * load**4, share=min(1.0, 1.3 / load))

        return measure

    return make


@pytest.mark.parametrize("edge", [3, 35, 80, 100, 130, 500, 2000])
@pytest.mark.parametrize("peak", [100, 120])
def test_the_maximum_rate_is_found_within_5_percent(server, edge, peak):
    result, levels = search(server(edge), P99, peak=peak, lowest=1)
    assert edge / 1.06 <= result.rate <= edge
    assert result.met
    assert len(levels) == len(result.trials) <= MAX_LEVELS
    assert [level.rate for level in levels] == [trial.rate for trial in result.trials]
    assert result.reason.startswith("missed at ")
    check_slo(result)


def test_the_reported_rate_has_two_passing_trials(server):
    for seed in range(50):
        result, _ = search(server(100, noise=0.03, seed=seed), P99, peak=110, lowest=1)
        assert result.rate is not None
        met = [trial for trial in result.trials if trial.met and trial.rate >= result.rate]
        assert len(met) >= 2
        assert 85 <= result.rate <= 106
        assert len(result.trials) <= MAX_LEVELS


def test_a_rate_that_passes_only_once_is_lowered(open_level):
    measured = []

    def lucky_server(rate):
        measured.append(rate)
        first_time = measured.count(rate) == 1
        return open_level(rate, 40 if rate <= 90 or (rate <= 100 and first_time) else 60)

    result, _ = search(lucky_server, P99, peak=115, lowest=1)
    assert 80 <= result.rate <= 90
    assert measured.count(max(rate for rate in measured if rate <= 100)) == 2


def test_no_rate_below_the_lowest_is_tried(server):
    result, levels = search(server(0.1), P99, peak=100, lowest=20)
    assert (result.met, result.rate, result.texts_per_s) == (False, None, None)
    assert min(level.rate for level in levels) == 20
    assert result.reason == "no rate from 20 requests/s upwards met it"
    with pytest.raises(
        CheckFailedError, match=r"missed at 20 requests/s: p99 is .* ms, limit 50 ms"
    ):
        check_slo(result)


def test_the_number_of_levels_is_bounded(server):
    result, levels = search(server(1e9), P99, peak=1, lowest=1)
    assert len(levels) == MAX_LEVELS
    assert result.rate is not None
    assert result.reason.endswith("the server may be faster")
