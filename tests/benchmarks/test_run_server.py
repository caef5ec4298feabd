"""Servers of known speed: levels, objectives and two in turns say what they are."""

import re
import time

import pytest

from pipework.benchmarks.load.slo import check_slo, parse_slo
from pipework.benchmarks.plan import Plan, Rival
from pipework.benchmarks.results_schema.comparison import Quantity, Verdict
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.run_server import bench_against, bench_server
from pipework.errors import CheckFailedError
from pipework.progress import Silent


def test_clients_and_rates_are_measured_in_one_run(serve):
    plan = Plan(concurrencies=(2,), rates=(20,), arrivals=Arrivals.CONSTANT, duration_s=0.9)
    closed, opened = bench_server(serve(delay_s=0.005).url, plan, Silent()).levels
    assert (closed.concurrency, closed.rate) == (2, None)
    assert (opened.rate, opened.arrivals, opened.concurrency) == (20, "constant", None)
    assert opened.sent == pytest.approx(18, abs=1)


def test_an_hours_price_becomes_a_cost_of_texts(serve):
    plan = Plan(concurrencies=(1,), price=3.6, batch=2, duration_s=0.3)
    (level,) = bench_server(serve(delay_s=0.005).url, plan, Silent()).levels
    assert level.cost_per_million == pytest.approx(1000 / level.texts_per_s, rel=1e-3)


def test_a_rate_that_misses_its_objective_is_exit_3_and_its_figures_are_kept(serve):
    plan = Plan(rates=(50,), limits=parse_slo(["p50=1ms"]), duration_s=0.6)
    result = bench_server(serve(delay_s=0.03).url, plan, Silent())
    assert len(result.levels) == 1
    with pytest.raises(CheckFailedError) as told:
        check_slo(result.slo)
    said = re.search(r"missed at 50 requests/s: p50 ([\d.]+) ms, wanted 1", str(told.value))
    assert float(said[1]) >= 30


def test_a_search_finds_the_known_capacity_of_a_real_server(serve):
    capacity, room = 60, 3
    spent_at = [0.0, 0.0]  # requests in the bucket, and when that was so

    def behave(_number):
        now = time.perf_counter()
        level = max(0.0, spent_at[0] - capacity * (now - spent_at[1]))
        if level > room:
            spent_at[:] = level, now
            return 429
        spent_at[:] = level + 1, now
        return 200

    plan = Plan(
        concurrencies=(2,),
        arrivals=Arrivals.CONSTANT,
        limits=parse_slo(["p50=100ms"]),
        duration_s=0.75,
    )
    result = bench_server(serve(delay_s=0.002, behave=behave).url, plan, Silent())
    # Late sends on a busy machine are misses too, so less may be found than there is.
    assert 0.5 * capacity <= result.slo.peak <= 1.2 * capacity
    assert 0.5 * capacity <= result.slo.rate <= 1.1 * capacity
    above = [trial for trial in result.slo.trials if trial.rate > 1.3 * capacity]
    assert all("HTTP 429" in " ".join(trial.missed) for trial in above)
    assert any(trial.missed for trial in result.slo.trials)
    check_slo(result.slo)


@pytest.mark.slow
def test_a_search_knows_what_the_generator_can_send(serve, monkeypatch):
    monkeypatch.setattr("pipework.benchmarks.run_server.generator_limit", lambda *_, **__: 20.0)
    plan = Plan(
        concurrencies=(4,),
        arrivals=Arrivals.CONSTANT,
        limits=parse_slo(["p50=200ms"]),
        duration_s=1,
    )
    found = bench_server(serve(delay_s=0.01).url, plan, Silent()).slo
    assert max(trial.rate for trial in found.trials) == 0.7 * 20
    assert found.reason == "the generator can send no more: the server may answer more"


def test_a_server_that_answers_nothing_has_no_rate_to_search_for(serve):
    server = serve(behave=lambda number: 200 if number == 0 else 500)
    plan = Plan(concurrencies=(1,), limits=parse_slo(["p50=20ms"]), duration_s=0.3)
    with pytest.raises(CheckFailedError, match="answered no request") as told:
        bench_server(server.url, plan, Silent())
    assert "HTTP 500" in told.value.hint


@pytest.mark.slow
def test_each_of_two_servers_hears_what_its_own_template_says(serve, monkeypatch):
    monkeypatch.setattr("pipework.benchmarks.run_server.LEAST_SLICE_S", 0.1)
    first, second = serve(), serve()
    plan = Plan(concurrencies=(1,), duration_s=0.3, template='{"texts": "$TEXTS", "n": 1}')
    rival = Rival(url=second.url, template='{"texts": "$TEXTS", "n": 2}')
    bench_against(first.url, rival, plan, Silent())
    assert {body["n"] for body in first.bodies} == {1}
    assert {body["n"] for body in second.bodies} == {2}


@pytest.mark.slow
def test_two_servers_in_turns_show_which_is_faster(serve):
    slow, fast = serve(delay_s=0.06), serve(delay_s=0.002)
    plan = Plan(concurrencies=(1,), duration_s=1, price=3.6)
    found = bench_against(fast.url, Rival(url=slow.url, price=7.2), plan, Silent())
    (level,) = found.levels
    quantities = [one.quantity for one in level.ratios]
    assert quantities == [Quantity.TEXTS_PER_S, Quantity.P50]  # too few were answered for a p99
    assert [one.verdict for one in level.ratios] == [Verdict.FASTER, Verdict.FASTER]
    was, now = level.cost_per_million
    assert was == pytest.approx(2000 / level.ratios[0].before, rel=1e-3)
    assert now == pytest.approx(1000 / level.ratios[0].after, rel=1e-3)
    words = f"pipe bench {fast.url} --against {slow.url} --concurrency 1 --price 3.6 --price 7.2"
    assert " ".join(found.after.command) == f"{words} --seconds 1"
    assert level.ratios[0].ratio > 2
    assert found.rounds == 5
    assert found.regressions == ()
    assert (found.before.target, found.after.target) == (slow.url, fast.url)
    assert len(slow.bodies) >= 20
    assert len(fast.bodies) > len(slow.bodies)
