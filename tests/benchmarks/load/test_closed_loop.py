"""Load of clients is generated, measured and counted as promised, against known servers."""

import socket

import pytest

from pipework.benchmarks.load import outcome
from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import target
from pipework.progress import Silent

DROP = -1  # what makes the fake server close the connection without an answer


def run(server, *, concurrency=1, texts=1, duration_s=0.6, warmup_s=0.0):
    workload = Workload.synthetic(texts_per_request=texts, seed=0)
    return closed_loop(
        target(server.url),
        workload,
        concurrency=concurrency,
        duration_s=duration_s,
        warmup_s=warmup_s,
        limit_s=duration_s,
        progress=Silent(),
    )


def test_four_clients_get_four_times_the_answers_of_a_server_that_only_waits(serve):
    server = serve(delay_s=0.05)
    # Interleaved, and the best of three: a busy machine can only take answers away.
    pairs = [(run(server), run(server, concurrency=4)) for _ in range(3)]
    one, four = (max(level.texts_per_s for level in levels) for levels in zip(*pairs, strict=True))
    assert 2.5 * one < four <= 1.1 * 4 / 0.05


def test_as_many_requests_are_in_flight_as_there_are_clients(serve):
    server = serve(delay_s=0.1)
    run(server, concurrency=3)
    assert server.most_at_once == 3


def test_latency_holds_the_delay_of_the_server(serve):
    found = run(serve(delay_s=0.03))
    assert found.latency_ms.p50 >= 30
    assert found.histogram.edges_ms[0] >= 28


def test_texts_count_per_request(serve):
    server = serve(delay_s=0.01)
    found = run(server, texts=8)
    assert found.texts == 8 * found.requests
    assert found.texts_per_s == pytest.approx(8 * found.requests_per_s, rel=1e-2)
    assert {len(body["texts"]) for body in server.bodies} == {8}


def test_what_ended_in_the_warm_up_is_left_out(serve):
    server = serve(delay_s=0.02, behave=lambda number: 200 if number > 2 else 503)
    found = run(server, duration_s=0.4, warmup_s=3.0)
    assert found.errors == {}
    assert found.requests < len(server.bodies) - 3
    assert 0.35 < found.duration_s <= 0.4


def test_errors_are_counted_by_kind_and_do_not_end_the_run(serve, monkeypatch):
    monkeypatch.setattr(outcome, "MAX_REQUESTS", 20)
    kinds = {0: 429, 1: 500, 2: DROP, 3: DROP}
    server = serve(delay_s=0.005, behave=lambda number: kinds.get(number, 200))
    found = run(server, duration_s=30)
    assert found.errors == {"HTTP 429": 1, "HTTP 500": 1, "connection dropped": 2}
    assert found.failed == 4
    assert found.requests == 16


def test_only_successes_have_latencies(serve):
    server = serve(delay_s=0.005, behave=lambda number: 500 if number % 2 else 200)
    found = run(server)
    assert sum(found.histogram.counts) == found.requests
    assert found.requests + found.failed == len(server.bodies)


def test_a_server_that_hangs_is_a_timeout(serve, monkeypatch):
    monkeypatch.setattr(outcome, "TIMEOUT_S", 0.1)
    found = run(serve(delay_s=0.5), duration_s=0.2)
    assert set(found.errors) == {"timeout"}


def test_a_server_that_is_gone_is_no_connection_and_is_not_hammered():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    class Gone:
        url = f"http://127.0.0.1:{port}"

    found = run(Gone, duration_s=0.3)
    assert set(found.errors) == {"no connection"}
    assert found.failed < 20


def test_the_number_of_requests_is_bounded(serve, monkeypatch):
    monkeypatch.setattr(outcome, "MAX_REQUESTS", 7)
    server = serve()
    found = run(server, concurrency=2, duration_s=30)
    assert len(server.bodies) == found.requests == 7
    assert found.duration_s < 10


def test_progress_tells_the_seconds_and_always_ends(serve):
    heard = []

    class Listener(Silent):
        def begin(self, title, total, unit):
            heard.append((title, total, unit))

        def advance(self, count, figures=None):
            heard.append((count, *figures))

        def end(self):
            heard.append("end")

    workload = Workload.synthetic(texts_per_request=1, seed=0)
    closed_loop(
        target(serve(delay_s=0.02).url),
        workload,
        concurrency=2,
        duration_s=1.1,
        warmup_s=0.0,
        limit_s=1.1,
        progress=Listener(),
    )
    (first, *told, last) = heard
    assert (first, last) == (("2 clients", 1, "s"), "end")
    assert sum(seconds for seconds, _ in told) == 1
    assert {unit for _, unit in told} == {"requests/s"}
