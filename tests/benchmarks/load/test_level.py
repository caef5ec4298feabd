"""The outcomes of a course are counted as promised."""

import pytest
from pydantic import ValidationError

from pipework.benchmarks.load.level import Driven, level
from pipework.benchmarks.load.level_run import Measured
from pipework.benchmarks.load.outcome import Outcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals, Level

FOUR = Workload.synthetic(texts_per_request=4, seed=0)
CLOSED, OPEN = Driven(concurrency=2), Driven(rate=5.0, arrivals=Arrivals.POISSON)
SPAN_S = (1.0, 3.0)


def outcome(sent_s, end_s, error=None, *, intended_s=None):
    intended_s = sent_s if intended_s is None else intended_s
    return Outcome(intended_s=intended_s, sent_s=sent_s, end_s=end_s, texts=4, error=error)


def found(driven, *outcomes):
    return level(Measured(outcomes=outcomes, span_s=SPAN_S, whole_s=SPAN_S), driven, FOUR)


def test_a_closed_level_counts_rates_in_the_window_and_latencies_to_the_last_answer():
    one = found(
        CLOSED,
        outcome(0.0, 0.9),  # the warm-up, which ends at 1.0
        outcome(0.9, 1.4),
        outcome(1.4, 2.9),
        outcome(2.9, 4.9),  # in flight when the window closes at 3.0
        outcome(0.0, 0.5, "HTTP 500"),
        outcome(1.0, 1.5, "HTTP 429"),
        outcome(2.0, 5.0, "timeout"),
    )
    assert (one.concurrency, one.rate, one.load) == (2, None, 2)
    assert (one.sent, one.requests, one.texts) == (5, 3, 12)
    assert (one.requests_per_s, one.texts_per_s, one.in_time) == (1.0, 4.0, 4.0)
    assert one.latency_ms.max == 2000
    assert one.errors == {"HTTP 429": 1, "timeout": 1}
    assert (one.failed, one.refused) == (2, 1)
    assert one.refused_ms.max == 500


def test_an_open_level_counts_what_was_to_be_sent_from_that_time_on():
    one = found(
        OPEN,
        outcome(0.5, 1.5),  # to be sent in the warm-up: its answer counts, its latency does not
        outcome(1.005, 1.1, intended_s=1.0),
        outcome(2.6, 2.7, intended_s=1.5),  # a second late
        outcome(2.9, 3.5),  # answered when the window had closed
        outcome(3.1, 3.2),
    )
    assert (one.concurrency, one.rate, one.arrivals) == (None, 5.0, "poisson")
    assert (one.sent, one.late, one.requests) == (3, 1, 3)
    assert one.latency_ms.p50 == pytest.approx(600)
    assert one.latency_ms.max == pytest.approx(1200)
    assert one.in_time == 4 * 3 / 2


def test_a_level_without_a_success_has_no_latencies():
    one = found(CLOSED, outcome(1.0, 1.1, "HTTP 500"))
    assert (one.latency_ms, one.histogram, one.texts_per_s) == (None, None, 0)
    assert (one.interval_ms, one.refused_ms) == ({}, None)


@pytest.mark.parametrize("driven", [{}, {"concurrency": 1, "rate": 1.0}])
def test_a_level_is_of_one_loop(driven):
    whole = found(CLOSED, outcome(1.0, 1.1)).model_dump(exclude={"concurrency", "rate"})
    with pytest.raises(ValidationError, match="expected either concurrency or rate"):
        Level(**whole, **driven)


def test_a_load_is_named():
    names = [f"{one}" for one in (Driven(concurrency=1), CLOSED, OPEN)]
    assert names == ["1 client", "2 clients", "5 requests/s"]
