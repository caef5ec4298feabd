"""Servers of known speed are measured correctly: levels and objectives."""

import re
import time

import pytest

from pipework.benchmarks.load.slo import check_slo, parse_slo
from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.run_server import bench_server
from pipework.errors import CheckFailedError
from pipework.progress import NullProgress


def test_clients_and_rates_are_measured_in_one_run(serve):
    plan = BenchPlan(concurrencies=(2,), rates=(20,), arrivals=Arrivals.CONSTANT, duration_s=0.9)
    closed, opened = bench_server(serve(delay_s=0.005).url, plan, NullProgress()).levels
    assert (closed.concurrency, closed.rate) == (2, None)
    assert (opened.rate, opened.arrivals, opened.concurrency) == (20, "constant", None)
    assert opened.sent == pytest.approx(18, abs=1)


def test_the_price_per_hour_is_converted_to_a_cost_per_million_texts(serve):
    plan = BenchPlan(concurrencies=(1,), price=3.6, batch=2, duration_s=0.3)
    (level,) = bench_server(serve(delay_s=0.005).url, plan, NullProgress()).levels
    assert level.cost_per_million == pytest.approx(1000 / level.texts_per_s, rel=1e-3)


def test_a_missed_objective_has_exit_code_3_and_the_figures_are_reported(serve):
    plan = BenchPlan(rates=(50,), limits=parse_slo(["p50=1ms"]), duration_s=0.6)
    result = bench_server(serve(delay_s=0.03).url, plan, NullProgress())
    assert len(result.levels) == 1
    with pytest.raises(CheckFailedError) as caught:
        check_slo(result.slo)
    match = re.search(r"missed at 50 requests/s: p50 is ([\d.]+) ms, limit 1 ms", str(caught.value))
    assert float(match[1]) >= 30


@pytest.mark.slow
def test_a_search_finds_the_known_capacity_of_a_real_server(serve):
    capacity, burst = 60, 3
    bucket = [0.0, 0.0]  # leaky bucket: its level, and the time of that level

    def behave(_number):
        now = time.perf_counter()
        level = max(0.0, bucket[0] - capacity * (now - bucket[1]))
        if level > burst:
            bucket[:] = level, now
            return 429
        bucket[:] = level + 1, now
        return 200

    plan = BenchPlan(
        concurrencies=(2,),
        arrivals=Arrivals.CONSTANT,
        limits=parse_slo(["p50=100ms"]),
        duration_s=0.75,
    )
    result = bench_server(serve(delay_s=0.002, behave=behave).url, plan, NullProgress())
    # On a busy machine late sends are misses too, so the result may be lower than the capacity.
    assert 0.5 * capacity <= result.levels[0].requests_per_s <= 1.2 * capacity
    assert 0.5 * capacity <= result.slo.rate <= 1.1 * capacity
    above = [trial for trial in result.slo.trials if trial.rate > 1.3 * capacity]
    assert all("HTTP 429" in " ".join(trial.missed) for trial in above)
    assert any(trial.missed for trial in result.slo.trials)
    check_slo(result.slo)


def test_a_search_needs_a_server_that_answers(serve):
    server = serve(behave=lambda number: 200 if number == 0 else 500)
    plan = BenchPlan(concurrencies=(1,), limits=parse_slo(["p50=20ms"]), duration_s=0.3)
    with pytest.raises(CheckFailedError, match="all closed-loop requests failed") as caught:
        bench_server(server.url, plan, NullProgress())
    assert "HTTP 500" in caught.value.hint
