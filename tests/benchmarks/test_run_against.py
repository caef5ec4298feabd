"""Two servers of known speed are compared correctly."""

import pytest

from pipework.benchmarks.plan import BenchPlan
from pipework.benchmarks.results_schema.comparison import Quantity, RatioVerdict
from pipework.benchmarks.run_against import bench_against
from pipework.progress import NullProgress


@pytest.mark.slow
def test_each_of_two_servers_has_its_own_template(serve, monkeypatch):
    monkeypatch.setattr("pipework.benchmarks.run_against.MIN_SLICE_S", 0.1)
    first, second = serve(), serve()
    plan = BenchPlan(concurrencies=(1,), duration_s=0.3, template='{"texts": "$TEXTS", "n": 1}')
    template = '{"texts": "$TEXTS", "n": 2}'
    bench_against(first.url, second.url, plan, NullProgress(), template=template)
    assert {body["n"] for body in first.bodies} == {1}
    assert {body["n"] for body in second.bodies} == {2}


@pytest.mark.slow
def test_an_alternating_measurement_shows_the_faster_server(serve):
    slow, fast = serve(delay_s=0.06), serve(delay_s=0.002)
    plan = BenchPlan(concurrencies=(1,), duration_s=1, price=3.6)
    result = bench_against(fast.url, slow.url, plan, NullProgress(), price=7.2)
    (level,) = result.levels
    quantities = [ratio.quantity for ratio in level.ratios]
    assert quantities == [Quantity.TEXTS_PER_S, Quantity.P50]  # too few requests for a p99
    assert [ratio.verdict for ratio in level.ratios] == [RatioVerdict.FASTER, RatioVerdict.FASTER]
    was, now = level.cost_per_million
    assert was == pytest.approx(2000 / level.ratios[0].before, rel=1e-3)
    assert now == pytest.approx(1000 / level.ratios[0].after, rel=1e-3)
    assert level.ratios[0].ratio > 2
    assert result.rounds == 5
    assert result.regressions == ()
    assert (result.before.target, result.after.target) == (slow.url, fast.url)
    assert len(slow.bodies) >= 20
    assert len(fast.bodies) > len(slow.bodies)
