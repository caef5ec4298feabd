"""Request outcomes are counted correctly."""

from types import SimpleNamespace

import pytest

from pipework.benchmarks.load import level as module
from pipework.benchmarks.load.level import OfferedLoad
from pipework.benchmarks.load.outcome import RequestOutcome
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals

FOUR = Workload.synthetic(texts_per_request=4, seed=0)
CLOSED, OPEN = OfferedLoad(concurrency=2), OfferedLoad(rate=5.0, arrivals=Arrivals.POISSON)
SPAN_S = (1.0, 3.0)


def outcome(sent_s, end_s, error=None, *, intended_s=None):
    intended_s = sent_s if intended_s is None else intended_s
    return RequestOutcome(intended_s=intended_s, sent_s=sent_s, end_s=end_s, texts=4, error=error)


def level_of(load, *outcomes):
    run = SimpleNamespace(outcomes=outcomes, span_s=SPAN_S, generator_cores=None, server=None)
    return module.level(run, load, FOUR).level


def test_a_closed_loop_counts_rates_within_the_window_and_latencies_until_the_last_response():
    level = level_of(
        CLOSED,
        outcome(0.0, 0.9),  # the warm-up, which ends at 1.0
        outcome(0.9, 1.4),
        outcome(1.4, 2.9),
        outcome(2.9, 4.9),  # in flight when the window closes at 3.0
        outcome(0.0, 0.5, "HTTP 500"),
        outcome(1.0, 1.5, "HTTP 429"),
        outcome(2.0, 5.0, "timeout"),
    )
    assert (level.concurrency, level.rate, level.load) == (2, None, 2)
    assert (level.sent, level.requests, level.texts) == (5, 3, 12)
    assert (level.requests_per_s, level.texts_per_s) == (1.0, 4.0)
    assert level.latency_ms.max == 2000
    assert level.errors == {"HTTP 429": 1, "timeout": 1}
    assert level.failed == 2


def test_an_open_loop_counts_requests_by_their_intended_send_time():
    level = level_of(
        OPEN,
        outcome(0.5, 1.5),  # intended in the warm-up: counts for the rate, not for latencies
        outcome(1.005, 1.1, intended_s=1.0),
        outcome(2.6, 2.7, intended_s=1.5),  # a second late
        outcome(2.9, 3.5),  # answered when the window had closed
        outcome(3.1, 3.2),
    )
    assert (level.concurrency, level.rate, level.arrivals) == (None, 5.0, "poisson")
    assert (level.sent, level.late, level.requests) == (3, 1, 3)
    assert level.latency_ms.p50 == pytest.approx(600)
    assert level.latency_ms.max == pytest.approx(1200)
    assert level.texts_per_s == 4 * 3 / 2


def test_a_level_without_a_success_has_no_latencies():
    level = level_of(CLOSED, outcome(1.0, 1.1, "HTTP 500"))
    assert (level.latency_ms, level.texts_per_s) == (None, 0)


def test_loads_have_labels():
    names = [f"{load}" for load in (OfferedLoad(concurrency=1), CLOSED, OPEN)]
    assert names == ["1 client", "2 clients", "5 requests/s"]
