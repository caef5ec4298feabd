"""An open loop sends at its rate whatever the server does, and counts what comes of it."""

import socket

import pytest

from pipework.benchmarks.load.open_loop import open_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.targets import target
from pipework.progress import Silent

DROP = -1  # what makes the fake server close the connection without an answer


def run(url, rate=100.0, duration_s=1.0, texts=1, arrivals=Arrivals.CONSTANT, **more):
    return open_loop(
        target(url),
        Workload.synthetic(texts_per_request=texts, seed=0),
        rate=rate,
        arrivals=arrivals,
        duration_s=duration_s,
        **({"limit_s": duration_s} | more),
        seed=1,
        progress=Silent(),
    )


def test_it_sends_at_its_rate_though_answers_take_long(serve):
    server = serve(delay_s=0.5)
    level = run(server.url)
    assert level.sent == level.requests == pytest.approx(100, abs=1)
    assert level.errors == {}
    assert server.most_at_once > 20  # a closed loop of as many clients would wait
    assert level.latency_ms.p50 >= 500


def test_refusals_are_told_apart_from_answers_and_errors(serve):
    outcomes = (200, 429, 503, DROP)
    level = run(serve(behave=lambda number: outcomes[number % 4]).url)
    assert level.requests + level.failed == level.sent == pytest.approx(100, abs=1)
    assert level.requests == pytest.approx(25, abs=1)
    assert set(level.errors) == {"HTTP 429", "HTTP 503", "connection dropped"}
    assert all(count == pytest.approx(25, abs=1) for count in level.errors.values())
    assert level.refused == level.errors["HTTP 429"]
    assert level.refused_ms.p50 > 0


def test_goodput_counts_texts_that_were_answered_in_time(serve):
    level = run(serve().url, texts=8)
    # The machine may stall, and then what is asked at the end is answered behind it.
    answered = 8 * level.requests / level.duration_s
    assert 0.5 * answered < level.in_time <= 1.01 * answered
    assert run(serve(delay_s=3).url, rate=20).in_time == 0


def test_random_arrivals_are_those_of_a_poisson_process_and_of_the_seed(serve):
    server = serve()
    first, second = (run(server.url, rate=200, arrivals=Arrivals.POISSON) for _ in range(2))
    assert first.sent == pytest.approx(200, abs=60)  # four standard deviations
    assert first.sent == pytest.approx(second.sent, abs=2)
    assert first.arrivals is Arrivals.POISSON


def test_latency_counts_from_the_time_a_request_was_to_be_sent(serve):
    level = run(serve(delay_s=0.02).url, rate=20)
    assert level.latency_ms.p50 >= 20
    assert level.late <= level.sent


def test_no_request_is_sent_before_its_time(serve, monkeypatch):
    seen = []

    def keep(measured, *_):
        seen.extend(measured.outcomes)

    monkeypatch.setattr("pipework.benchmarks.load.drive.level", keep)
    run(serve().url, rate=300)
    assert len(seen) > 200
    assert all(one.sent_s >= one.intended_s for one in seen)


def test_what_is_sent_in_the_warm_up_is_not_counted(serve):
    server = serve(behave=lambda number: 500 if number < 10 else 200)
    level = run(server.url, warmup_s=1.0)
    assert level.errors == {}
    assert level.sent < len(server.bodies) - 10


def test_a_level_ends_when_its_windows_agree_and_goes_on_while_they_do_not(serve):
    calm = run(serve(delay_s=0.01).url, limit_s=60)
    assert calm.stable
    assert 3 <= len(calm.windows) < 180
    assert calm.duration_s == pytest.approx(1.0)
    still = run(serve(delay_s=4).url, limit_s=2.0, rate=5)  # nothing is answered in any window
    assert not still.stable
    assert len(still.windows) == 6


def test_where_no_server_listens_each_request_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    level = run(url, rate=20)
    assert (level.requests, level.latency_ms) == (0, None)
    assert level.errors == {"no connection": level.sent}
