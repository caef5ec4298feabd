"""The search finds the edge of servers whose edge is known, also where levels are noisy."""

import numpy as np
import pytest

from pipework.benchmarks.load.slo import check_slo, parse_slo
from pipework.benchmarks.load.slo_search import MOST_LEVELS, Bounds, search
from pipework.errors import CheckFailedError

P99 = parse_slo(["p99=50ms"])
BOUNDS = Bounds(least=1)


def test_a_slow_server_is_told_to_be_measured_longer(open_level):
    def measure(rate):
        return open_level(rate, 900, share=8 / rate)  # it answers 8 requests/s, however many come

    result, _ = search(measure, P99, peak=8, bounds=Bounds(least=40))
    assert (result.rate, result.least, result.peak) == (None, 40, 8)
    with pytest.raises(CheckFailedError, match="missed at 40 requests/s") as told:
        check_slo(result)
    assert told.value.hint == (
        "it answers 8 requests/s, and so few are not enough to tell in such a level:"
        " measure longer, with 10 times the --seconds"
    )


def test_a_server_whose_every_answer_is_late_is_told_to_have_more(open_level):
    result, _ = search(lambda rate: open_level(rate, 90), P99, peak=100, bounds=BOUNDS)
    with pytest.raises(CheckFailedError) as told:
        check_slo(result)
    assert told.value.hint.startswith("give the server more")


def test_a_winner_that_is_never_borne_out_is_told(open_level):
    measured = []

    def lucky(rate):
        measured.append(rate)
        return open_level(rate, 40 if len(measured) == 1 else 60)

    result, _ = search(lucky, P99, peak=50, bounds=Bounds(least=30))
    assert result.rate is None
    assert "up met it again after 40, which met it once" in result.reason


@pytest.fixture
def server(open_level):
    """Make a server whose p99 is 50 ms at its edge, and whose queue grows beyond it."""

    def make(edge, noise=0.0, seed=0):
        chance = np.random.default_rng(seed)

        def measure(rate):
            load = rate / edge * (1 + noise * chance.standard_normal())
            return open_level(rate, 50 * load**4, share=min(1.0, 1.3 / load))

        return measure

    return make


@pytest.mark.parametrize("edge", [3, 35, 80, 100, 130, 500, 2000])
@pytest.mark.parametrize("peak", [100, 120])
def test_the_edge_is_found_within_5_percent(server, edge, peak):
    result, levels = search(server(edge), P99, peak=peak, bounds=BOUNDS)
    assert edge / 1.06 <= result.rate <= edge
    assert len(levels) == len(result.trials) <= MOST_LEVELS
    assert [one.rate for one in levels] == [trial.rate for trial in result.trials]
    assert result.reason.startswith("missed at ")
    check_slo(result)


def test_the_winner_has_met_the_objective_twice(server):
    for seed in range(50):
        result, _ = search(server(100, noise=0.03, seed=seed), P99, peak=110, bounds=BOUNDS)
        assert result.rate is not None
        met = [trial for trial in result.trials if trial.met and trial.rate >= result.rate]
        assert len(met) >= 2
        assert 85 <= result.rate <= 106
        assert len(result.trials) <= MOST_LEVELS


def test_a_lucky_winner_gives_way(open_level):
    measured = []

    def lucky(rate):
        measured.append(rate)
        first_time = measured.count(rate) == 1
        return open_level(rate, 40 if rate <= 90 or (rate <= 100 and first_time) else 60)

    result, _ = search(lucky, P99, peak=115, bounds=BOUNDS)
    assert 80 <= result.rate <= 90
    assert measured.count(max(rate for rate in measured if rate <= 100)) == 2


def test_no_rate_is_too_low_to_tell(server):
    result, levels = search(server(0.1), P99, peak=100, bounds=Bounds(least=20))
    assert result.rate is None
    assert min(one.rate for one in levels) == 20
    assert result.reason == "no rate from 20 requests/s up met it"
    with pytest.raises(CheckFailedError, match=r"missed at 20 requests/s: p99 .* ms, wanted 50"):
        check_slo(result)


def test_a_generator_at_its_limit_is_named_and_not_the_server(server):
    result, levels = search(server(10_000), P99, peak=100, bounds=Bounds(least=1, most=150))
    assert result.rate == max(one.rate for one in levels) == 150
    assert result.reason == "the generator can send no more: the server may answer more"


def test_the_number_of_levels_is_bounded(server):
    result, levels = search(server(1e9), P99, peak=1, bounds=BOUNDS)
    assert len(levels) == MOST_LEVELS
    assert result.rate is not None
    assert result.reason.endswith("the server may answer more")
