"""An open loop sends at its rate independent of responses."""

import pytest

from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.open_loop import open_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.targets import target
from pipework.progress import NullProgress

DROP = -1  # the fake server closes the connection without a response


def run(url, rate=100.0, texts=1, arrivals=Arrivals.CONSTANT, **duration):
    seconds = {"warmup_s": 0.0, "duration_s": 1.0, "limit_s": 1.0} | duration
    spec = LoadSpec(
        workload=Workload.synthetic(texts_per_request=texts, seed=0),
        load=OfferedLoad(rate=rate, arrivals=arrivals),
        duration=LevelDuration(**seconds),
    )
    return open_loop(target(url), spec, NullProgress(), seed=1).level


def test_requests_are_sent_at_the_rate_even_if_responses_are_slow(serve):
    server = serve(delay_s=0.5)
    level = run(server.url)
    assert level.sent == level.requests == pytest.approx(100, abs=1)
    assert level.errors == {}
    assert server.most_at_once > 20  # a closed loop would wait
    assert level.latency_ms.p50 >= 500


def test_refusals_successes_and_errors_are_counted_separately(serve):
    outcomes = (200, 429, 503, DROP)
    level = run(serve(behave=lambda number: outcomes[number % 4]).url)
    assert level.requests + level.failed == level.sent == pytest.approx(100, abs=1)
    assert level.requests == pytest.approx(25, abs=1)
    assert set(level.errors) == {"HTTP 429", "HTTP 503", "connection dropped"}
    assert all(count == pytest.approx(25, abs=1) for count in level.errors.values())
    assert level.refused == level.errors["HTTP 429"]
    assert level.refused_ms.p50 > 0


@pytest.mark.slow
def test_goodput_counts_texts_answered_in_time(serve):
    level = run(serve().url, texts=8)
    # The machine may stall; the last requests are then answered after the end of the level.
    answered = 8 * level.requests / level.duration_s
    assert 0.5 * answered < level.goodput <= 1.01 * answered
    assert run(serve(delay_s=3).url, rate=20).goodput == 0


def test_random_arrivals_are_a_poisson_process_of_the_seed(serve):
    server = serve()
    first, second = (run(server.url, rate=200, arrivals=Arrivals.POISSON) for _ in range(2))
    assert first.sent == pytest.approx(200, abs=60)  # four standard deviations
    assert first.sent == pytest.approx(second.sent, abs=2)
    assert first.arrivals is Arrivals.POISSON


def test_latency_counts_from_the_intended_send_time(serve):
    level = run(serve(delay_s=0.02).url, rate=20)
    assert level.latency_ms.p50 >= 20
    assert level.late <= level.sent


def test_no_request_is_sent_before_its_intended_time(serve, monkeypatch):
    seen = []

    def record_outcomes(measurement, *_):
        seen.extend(measurement.outcomes)

    monkeypatch.setattr("pipework.benchmarks.load.drive.level", record_outcomes)
    run(serve().url, rate=300)
    assert len(seen) > 200
    assert all(outcome.sent_s >= outcome.intended_s for outcome in seen)


def test_requests_of_the_warm_up_are_not_counted(serve):
    server = serve(behave=lambda number: 500 if number < 10 else 200)
    level = run(server.url, warmup_s=1.0)
    assert level.errors == {}
    assert level.sent < len(server.bodies) - 10


@pytest.mark.slow
def test_a_level_ends_when_its_windows_agree(serve):
    calm = run(serve(delay_s=0.01).url, limit_s=60)
    assert calm.stable
    assert 3 <= len(calm.windows) < 180
    assert calm.duration_s == pytest.approx(1.0)
    still = run(serve(delay_s=4).url, limit_s=2.0, rate=5)  # no window has a response
    assert not still.stable
    assert len(still.windows) == 6


def test_without_a_server_each_request_is_an_error(closed_port):
    level = run(f"http://127.0.0.1:{closed_port}", rate=20)
    assert (level.requests, level.latency_ms) == (0, None)
    assert level.errors == {"no connection": level.sent}
