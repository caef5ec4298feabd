"""An objective is read as written, and a level that does not keep up cannot meet it."""

import pytest

from pipework.benchmarks.load.slo import asked, check_slo, judge, least_rate, parse_slo, written
from pipework.benchmarks.results_schema.slo import Limit, Statistic
from pipework.errors import CheckFailedError, ConfigError

P99 = parse_slo(["p99=50ms"])


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["p99=50ms"], [("p99", 50)]),
        (["p99.9=0.2s"], [("p99.9", 200)]),
        (["p50=1.5ms,mean=3ms"], [("p50", 1.5), ("mean", 3)]),
        (["p50=10ms", "p95 = 1s"], [("p50", 10), ("p95", 1000)]),
    ],
)
def test_limits_are_read_in_milliseconds_and_seconds(given, read):
    assert [(limit.statistic, limit.most_ms) for limit in parse_slo(given)] == read


@pytest.mark.parametrize(
    "given", ["p99", "p99=50", "p98=50ms", "p99=0ms", "p99=-1ms", "max=1s", "", "p99=50msp", "x"]
)
def test_what_is_no_limit_is_told_with_what_is(given):
    with pytest.raises(
        ConfigError, match=r"expected one of p50, .*p99\.9, mean and a time"
    ) as told:
        parse_slo([given])
    assert told.value.hint == "for example --slo p99=50ms"


def test_a_statistic_has_one_limit():
    with pytest.raises(ConfigError, match="limits p99 twice"):
        parse_slo(["p99=50ms", "p99=60ms"])


def test_limits_are_written_for_people():
    assert written(parse_slo(["p99=50ms,mean=1.5s"])) == "p99 at most 50 ms, mean at most 1,500 ms"


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
def test_each_statistic_is_held_against_its_own_limit(open_level, met, statistic, most_ms):
    trial = judge(open_level(p99=40), [Limit(statistic=Statistic(statistic), most_ms=most_ms)])
    assert trial.met is met
    assert all(statistic in words for words in trial.missed)


def test_every_limit_must_hold(open_level):
    trial = judge(open_level(p99=40), parse_slo(["p50=20ms", "p99=30ms"]))
    assert trial.missed == ("p99 40 ms, wanted 30",)
    assert trial.seen_ms == (10, 40)


def test_answers_that_do_not_keep_up_miss_however_quick_they_are(open_level):
    trial = judge(open_level(share=0.9), P99)
    assert trial.missed == ("answered 90 requests/s of 100 in time",)
    assert judge(open_level(share=0.96), P99).met


def test_requests_in_flight_at_the_end_are_no_backlog(open_level):
    def waiting(share):  # as many for the mean of 400 ms: 40, give or take 6 at either end
        level = open_level(p99=900, seconds=5, share=share)
        return level.model_copy(
            update={"latency_ms": level.latency_ms.model_copy(update={"mean": 400.0})}
        )

    assert judge(waiting(0.92), parse_slo(["p99=1s"])).met
    assert not judge(waiting(0.92), parse_slo(["p99=1s", "p50=1ms"])).met
    missed = judge(waiting(0.90), parse_slo(["p99=1s"])).missed
    assert missed == ("answered 90 requests/s of 100 in time",)


def test_an_overloaded_server_misses_though_its_limit_is_as_long_as_the_level(open_level):
    level = open_level(rate=100, p99=1900, seconds=5, share=0.6)
    assert judge(level, parse_slo(["p99=5s"])).missed == ("answered 60 requests/s of 100 in time",)


def test_failed_requests_miss(open_level):
    trial = judge(open_level(errors={"HTTP 429": 4, "timeout": 7}), P99)
    assert trial.missed == ("1.1% of requests failed (timeout, HTTP 429)",)
    assert judge(open_level(errors={"HTTP 429": 1}), P99).met


def test_where_nothing_is_answered_nothing_is_met(open_level):
    trial = judge(open_level(rate=10, errors={"HTTP 500": 100}), P99)
    assert not trial.met
    assert trial.missed[0] == "p99 of no answers"
    assert trial.seen_ms == (None,)


def test_late_sends_miss_since_the_rate_was_not_kept(open_level):
    assert judge(open_level(late=20), P99).missed == ("the generator sent 2.0% of requests late",)
    assert judge(open_level(late=10), P99).met


def test_a_rate_must_send_requests_enough_for_its_percentile():
    assert least_rate(P99, 5) == 40
    assert least_rate(parse_slo(["p50=1ms", "p99.9=1s"]), 10) == 200


def test_rates_asked_for_are_judged_and_one_that_misses_is_exit_3(open_level):
    met = asked([open_level(50, 20), open_level(100, 40)], P99)
    assert (met.met, met.rate, met.texts_per_s) == (True, 100, 800)
    check_slo(met)
    missed = asked([open_level(100, 40), open_level(200, 61.25)], P99)
    assert (missed.met, missed.rate) == (False, 100)
    with pytest.raises(CheckFailedError) as told:
        check_slo(missed)
    words = "p99 at most 50 ms: missed at 200 requests/s: p99 61.25 ms, wanted 50"
    assert str(told.value) == words
    assert told.value.exit_code == 3
