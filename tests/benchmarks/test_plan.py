"""A plan is bounded, and its command repeats it."""

from pathlib import Path

import pytest

from pipework.benchmarks.load.slo import parse_slo
from pipework.benchmarks.plan import Plan, Rival
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import ConfigError

P99 = parse_slo(["p99=50ms"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrencies": ()}, "--concurrency"),
        ({"concurrencies": (1, 0)}, "--concurrency: expected 1 to 256, found 0"),
        ({"batch": 0}, "--batch: expected 1 to 1024, found 0"),
        ({"duration_s": float("nan")}, "--seconds: expected 0.1 to 600, found nan"),
        ({"duration_s": 1e9}, "--seconds"),
        ({"rates": (0,)}, "--rate: expected 0.1 to 100000, found 0"),
        ({"price": -1}, "--price: expected 0 to 1e\\+06, found -1"),
        ({"arrivals": Arrivals.TRACE}, "--arrivals trace: expected a --trace that says when"),
    ],
)
def test_a_plan_without_bounds_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        Plan(**wrong)


def test_rates_too_low_for_a_percentile_are_told_how_long_it_takes():
    with pytest.raises(ConfigError, match="25 requests are too few for p99: expected 200") as told:
        Plan(rates=(50, 5), limits=P99)
    assert told.value.hint == "measure longer: --seconds 40"
    Plan(rates=(50, 40), limits=P99)


def test_the_time_that_is_told_is_long_enough_and_allowed():
    with pytest.raises(ConfigError) as told:
        Plan(rates=(6,), limits=P99)
    Plan(rates=(6,), limits=P99, duration_s=float(told.value.hint.rpartition(" ")[2]))
    with pytest.raises(ConfigError) as told:
        Plan(rates=(0.2,), limits=P99)
    assert told.value.hint == "that takes 1000 s, and 600 are allowed: take a larger --rate"


def test_more_requests_than_are_ever_sent_are_refused_before():
    with pytest.raises(ConfigError, match="--seconds times --rate"):
        Plan(rates=(5000,), duration_s=600)


def test_levels_too_short_for_a_limit_are_told_how_long_it_takes():
    limits = parse_slo(["p50=10ms,p99=2s"])
    with pytest.raises(
        ConfigError, match=r"levels of 5 s are too short for p99 of at most 2 s: .* expected 10 s"
    ) as told:
        Plan(limits=limits)
    assert told.value.hint == "measure longer: --seconds 10"
    Plan(limits=limits, duration_s=10)


@pytest.mark.parametrize(
    ("plan", "loads"),
    [
        (Plan(), "1 client, 2 clients, 4 clients, 8 clients, 16 clients"),
        (Plan(concurrencies=(3,)), "3 clients"),
        (Plan(rates=(50, 120)), "50 requests/s, 120 requests/s"),
        (Plan(rates=(50,), concurrencies=(2,)), "2 clients, 50 requests/s"),
    ],
)
def test_rates_stand_in_for_clients_unless_both_are_asked_for(plan, loads):
    assert ", ".join(map(str, plan.loads)) == loads


def test_the_command_repeats_the_plan_without_a_path():
    source = Source(path=Path("/secret/rows.tsv"), columns=Columns(text=0, text_pair=1, label=None))
    plan = Plan(
        source=source,
        batch=8,
        concurrencies=(2,),
        rates=(50, 62.5),
        arrivals=Arrivals.CONSTANT,
        limits=parse_slo(["p99=50ms", "p95=0.1s"]),
        price=1.2,
        duration_s=10,
    )
    assert " ".join(plan.command("http://h:1")) == (
        "pipe bench http://h:1 --file rows.tsv --columns text=0,text_pair=1 --batch 8"
        " --concurrency 2 --rate 50,62.5 --arrivals constant --slo p99=50ms --slo p95=100ms"
        " --price 1.2 --seconds 10"
    )
    rival = Rival(url="http://h:2", price=2, template='{"q": "$TEXT"}')
    both = Plan(concurrencies=(1,), price=1, template='{"inputs": "$TEXTS"}')
    assert both.command("http://h:1", rival) == (
        *("pipe", "bench", "http://h:1", "--against", "http://h:2", "--concurrency", "1"),
        *("--price", "1", "--price", "2"),
        *("--template", '{"inputs": "$TEXTS"}', "--template", '{"q": "$TEXT"}'),
        *("--seconds", "5"),
    )
    same = Rival(url="http://h:2", price=1, template=both.template)
    assert both.command("http://h:1", same).count("--price") == 1
    assert " ".join(Plan(mean_words=30).command("run")) == "pipe bench run --words 30 --seconds 5"
