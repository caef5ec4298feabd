"""Objectives are parsed, and overloaded levels miss them whatever their latency."""

import pytest

from pipework.benchmarks.load.slo import (
    check_slo,
    format_limits,
    judge,
    judge_rates,
    min_rate,
    parse_slo,
)
from pipework.benchmarks.results_schema.results import SloLimit, Statistic
from pipework.errors import CheckFailedError, ConfigError

P99 = parse_slo(["p99=50ms"])


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        (["p99=50ms"], [("p99", 50)]),
        (["p99.9=0.2s"], [("p99.9", 200)]),
        (["p50=1.5ms,mean=3ms"], [("p50", 1.5), ("mean", 3)]),
        (["p50=10ms", "p95 = 1s"], [("p50", 10), ("p95", 1000)]),
    ],
)
def test_limits_are_parsed_in_milliseconds_and_seconds(values, limits):
    assert [(limit.statistic, limit.most_ms) for limit in parse_slo(values)] == limits


@pytest.mark.parametrize(
    "values", ["p99", "p99=50", "p98=50ms", "p99=0ms", "p99=-1ms", "max=1s", "", "p99=50msp", "x"]
)
def test_an_invalid_limit_is_reported_with_the_valid_form(values):
    with pytest.raises(
        ConfigError, match=r"expected STATISTIC=TIME, with one of p50, .*p99\.9, mean and ms or s"
    ) as caught:
        parse_slo([values])
    assert caught.value.hint == "for example --slo p99=50ms"


def test_limits_are_formatted():
    assert format_limits(parse_slo(["p99=50ms,mean=1.5s"])) == "p99 <= 50 ms, mean <= 1,500 ms"


@pytest.mark.parametrize(
    ("met", "statistic", "most_ms"),
    [
        (True, "p99", 40),
        (False, "p99", 39.9),
        (True, "p50", 10),
        (False, "p50", 9),
        (True, "p99.9", 80),
        (False, "p99.9", 79),
        (True, "mean", 8),
        (False, "mean", 7),
    ],
)
def test_each_statistic_is_compared_with_its_limit(open_level, met, statistic, most_ms):
    trial = judge(open_level(p99=40), [SloLimit(statistic=Statistic(statistic), most_ms=most_ms)])
    assert trial.met is met
    assert all(statistic in text for text in trial.missed)


def test_every_limit_must_hold(open_level):
    trial = judge(open_level(p99=40), parse_slo(["p50=20ms", "p99=30ms"]))
    assert trial.missed == ("p99 is 40 ms, limit 30 ms",)
    assert trial.seen_ms == (10, 40)


def test_low_throughput_misses_whatever_the_latency(open_level):
    trial = judge(open_level(share=0.9), P99)
    assert trial.missed == ("90 of 100 requests/s answered in time",)
    assert judge(open_level(share=0.96), P99).met


def test_requests_in_flight_at_the_end_are_tolerated(open_level):
    def waiting(share):  # a mean of 400 ms gives 40 in flight, +- 6 at either end
        level = open_level(p99=900, seconds=5, share=share)
        return level.model_copy(
            update={"latency_ms": level.latency_ms.model_copy(update={"mean": 400.0})}
        )

    assert judge(waiting(0.92), parse_slo(["p99=1s"])).met
    assert not judge(waiting(0.92), parse_slo(["p99=1s", "p50=1ms"])).met
    missed = judge(waiting(0.90), parse_slo(["p99=1s"])).missed
    assert missed == ("90 of 100 requests/s answered in time",)


def test_an_overloaded_server_misses_even_a_limit_as_long_as_the_level(open_level):
    level = open_level(rate=100, p99=1900, seconds=5, share=0.6)
    assert judge(level, parse_slo(["p99=5s"])).missed == ("60 of 100 requests/s answered in time",)


def test_failed_requests_miss_the_objective(open_level):
    trial = judge(open_level(errors={"HTTP 429": 4, "timeout": 7}), P99)
    assert trial.missed == ("1.1% of requests failed (timeout, HTTP 429)",)
    assert judge(open_level(errors={"HTTP 429": 1}), P99).met


def test_a_level_without_successes_misses(open_level):
    trial = judge(open_level(rate=10, errors={"HTTP 500": 100}), P99)
    assert not trial.met
    assert trial.missed[0] == "p99 unknown: no request succeeded"
    assert trial.seen_ms == (None,)


def test_late_sends_miss_because_the_rate_was_not_sent(open_level):
    assert judge(open_level(late=20), P99).missed == (
        "2.0% of requests sent late by the load generator",
    )
    assert judge(open_level(late=10), P99).met


def test_the_minimum_rate_sends_enough_requests_for_the_percentile():
    assert min_rate(P99, 5) == 40
    assert min_rate(parse_slo(["p50=1ms", "p99.9=1s"]), 10) == 200


def test_given_rates_are_judged_and_a_miss_has_exit_code_3(open_level):
    met = judge_rates([open_level(50, 20), open_level(100, 40)], P99)
    assert (met.met, met.rate, met.texts_per_s) == (True, 100, 800)
    check_slo(met)
    missed = judge_rates([open_level(100, 40), open_level(200, 61.25)], P99)
    assert (missed.met, missed.rate) == (False, 100)
    with pytest.raises(CheckFailedError) as caught:
        check_slo(missed)
    text = "SLO p99 <= 50 ms missed at 200 requests/s: p99 is 61.25 ms, limit 50 ms"
    assert str(caught.value) == text
    assert caught.value.exit_code == 3
