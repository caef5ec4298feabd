"""Plans are bounded."""

import pytest

from pipework.benchmarks.load.slo import parse_slo
from pipework.benchmarks.plan import BenchPlan
from pipework.errors import ConfigError

P99 = parse_slo(["p99=50ms"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"concurrencies": ()}, "--concurrency"),
        ({"duration_s": float("nan")}, "--seconds: expected 0.1 to 600, found nan"),
        ({"duration_s": 1e9}, "--seconds"),
    ],
)
def test_values_out_of_range_are_reported(values, message):
    with pytest.raises(ConfigError, match=message):
        BenchPlan(**values)


def test_the_hint_for_too_low_rates_is_the_needed_time():
    with pytest.raises(
        ConfigError, match="25 requests are too few for p99: expected at least 200"
    ) as caught:
        BenchPlan(rates=(50, 5), limits=P99)
    assert caught.value.hint == "use --seconds 40"
    BenchPlan(rates=(50, 40), limits=P99)


def test_the_time_of_the_hint_is_sufficient_and_allowed():
    with pytest.raises(ConfigError) as caught:
        BenchPlan(rates=(6,), limits=P99)
    BenchPlan(rates=(6,), limits=P99, duration_s=float(caught.value.hint.rpartition(" ")[2]))
    with pytest.raises(ConfigError) as caught:
        BenchPlan(rates=(0.2,), limits=P99)
    hint = "this needs 1000 s, more than the maximum of 600: use a larger --rate"
    assert caught.value.hint == hint


def test_too_many_requests_are_rejected():
    with pytest.raises(ConfigError, match="--seconds times --rate"):
        BenchPlan(rates=(5000,), duration_s=600)


def test_the_hint_for_too_short_levels_is_the_needed_time():
    limits = parse_slo(["p50=10ms,p99=2s"])
    with pytest.raises(
        ConfigError, match=r"levels of 5 s are too short for p99 <= 2000 ms: expected at least 10 s"
    ) as caught:
        BenchPlan(limits=limits)
    assert caught.value.hint == "use --seconds 10"
    BenchPlan(limits=limits, duration_s=10)


@pytest.mark.parametrize(
    ("plan", "loads"),
    [
        (BenchPlan(), "1 client, 2 clients, 4 clients, 8 clients, 16 clients"),
        (BenchPlan(concurrencies=(3,)), "3 clients"),
        (BenchPlan(rates=(50, 120)), "50 requests/s, 120 requests/s"),
        (BenchPlan(rates=(50,), concurrencies=(2,)), "2 clients, 50 requests/s"),
    ],
)
def test_rates_replace_the_default_clients(plan, loads):
    assert ", ".join(map(str, plan.loads)) == loads
