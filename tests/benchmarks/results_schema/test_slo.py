"""Verdicts on a service level objective."""

import pytest
from pydantic import ValidationError

from pipework.benchmarks.results_schema.slo import RateTrial, SloLimit, SloResult, Statistic

LIMIT = SloLimit(statistic=Statistic.P99, most_ms=50)


def trial(rate, *missed):
    return RateTrial(rate=rate, seen_ms=(40.0,), missed=missed)


def result(*trials, rate=None, asked=()):
    return SloResult(
        limits=(LIMIT,), asked=asked, rate=rate, texts_per_request=8, trials=trials, reason=""
    )


def test_a_trial_without_a_violation_met_the_objective():
    assert trial(10).met
    assert not trial(10, "p99 60 ms > 50 ms").met


def test_every_given_rate_must_meet_the_objective():
    assert result(trial(10), trial(20), rate=20, asked=(10, 20)).met
    assert not result(trial(10), trial(20, "p99"), rate=10, asked=(10, 20)).met


def test_a_search_needs_one_rate_that_meets_the_objective():
    assert result(trial(10), trial(20, "p99"), rate=10).met
    assert not result(trial(10, "p99")).met


def test_the_throughput_counts_all_texts_of_a_request():
    assert result(trial(10), rate=10).texts_per_s == 80
    assert result(trial(10, "p99")).texts_per_s is None


def test_a_statistic_is_named_as_on_the_command_line():
    assert SloLimit.model_validate({"statistic": "p99.9", "most_ms": 1}).statistic is Statistic.P999
    with pytest.raises(ValidationError, match="statistic"):
        SloLimit.model_validate({"statistic": "p98", "most_ms": 1})
