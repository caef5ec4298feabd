"""Closed-loop load is generated, measured and counted correctly."""

import pytest

from pipework.benchmarks.load import outcome
from pipework.benchmarks.load.closed_loop import closed_loop
from pipework.benchmarks.load.level import LoadSpec, OfferedLoad
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import target
from pipework.progress import NullProgress

DROP = -1  # the fake server closes the connection without a response


def run(server, *, concurrency=1, texts=1, duration_s=0.6, warmup_s=0.0, progress=None):
    spec = LoadSpec(
        workload=Workload.synthetic(texts_per_request=texts, seed=0),
        load=OfferedLoad(concurrency=concurrency),
        duration=LevelDuration(warmup_s=warmup_s, duration_s=duration_s, limit_s=duration_s),
    )
    return closed_loop(target(server.url), spec, progress or NullProgress()).level


@pytest.mark.slow
def test_four_clients_get_about_four_times_the_throughput_of_a_waiting_server(serve):
    server = serve(delay_s=0.05)
    # Interleaved, and the best of three: a busy machine can only lower the throughput.
    pairs = [(run(server), run(server, concurrency=4)) for _ in range(3)]
    single, four = (
        max(level.texts_per_s for level in levels) for levels in zip(*pairs, strict=True)
    )
    assert 2.5 * single < four <= 1.1 * 4 / 0.05


def test_the_number_of_requests_in_flight_is_the_number_of_clients(serve):
    server = serve(delay_s=0.1)
    run(server, concurrency=3)
    assert server.most_at_once == 3


def test_latency_includes_the_delay_of_the_server(serve):
    level = run(serve(delay_s=0.03))
    assert level.latency_ms.p50 >= 30
    assert level.histogram.edges_ms[0] >= 28


def test_all_texts_of_a_request_are_counted(serve):
    server = serve(delay_s=0.01)
    level = run(server, texts=8)
    assert level.texts == 8 * level.requests
    assert level.texts_per_s == pytest.approx(8 * level.requests_per_s, rel=1e-2)
    assert {len(body["texts"]) for body in server.bodies} == {8}


def test_requests_that_ended_in_the_warm_up_are_left_out(serve):
    server = serve(delay_s=0.02, behave=lambda number: 200 if number > 2 else 503)
    level = run(server, duration_s=0.4, warmup_s=3.0)
    assert level.errors == {}
    assert level.requests < len(server.bodies) - 3
    assert 0.35 < level.duration_s <= 0.4


def test_errors_are_counted_by_kind_and_do_not_stop_the_level(serve, monkeypatch):
    monkeypatch.setattr(outcome, "MAX_REQUESTS", 20)
    kinds = {0: 429, 1: 500, 2: DROP, 3: DROP}
    server = serve(delay_s=0.005, behave=lambda number: kinds.get(number, 200))
    level = run(server, duration_s=30)
    assert level.errors == {"HTTP 429": 1, "HTTP 500": 1, "connection dropped": 2}
    assert level.failed == 4
    assert level.requests == 16


def test_latencies_contain_only_successful_requests(serve):
    server = serve(delay_s=0.005, behave=lambda number: 500 if number % 2 else 200)
    level = run(server)
    assert sum(level.histogram.counts) == level.requests
    assert level.requests + level.failed == len(server.bodies)


def test_a_hanging_server_is_counted_as_timeout(serve, monkeypatch):
    monkeypatch.setattr(outcome, "TIMEOUT_S", 0.1)
    level = run(serve(delay_s=0.5), duration_s=0.2)
    assert set(level.errors) == {"timeout"}


def test_a_stopped_server_is_counted_as_no_connection_and_not_flooded(closed_port):
    class StoppedServer:
        url = f"http://127.0.0.1:{closed_port}"

    level = run(StoppedServer, duration_s=0.3)
    assert set(level.errors) == {"no connection"}
    assert level.failed < 20


def test_the_number_of_requests_is_bounded(serve, monkeypatch):
    monkeypatch.setattr(outcome, "MAX_REQUESTS", 7)
    server = serve()
    level = run(server, concurrency=2, duration_s=30)
    assert len(server.bodies) == level.requests == 7
    assert level.duration_s < 10


def test_progress_reports_seconds_and_rates_and_ends(serve):
    events = []

    class RecordingProgress(NullProgress):
        def begin(self, title, total, unit):
            events.append((title, total, unit))

        def advance(self, count, figures=None):
            events.append((count, *figures))

        def end(self):
            events.append("end")

    run(serve(delay_s=0.02), concurrency=2, duration_s=1.1, progress=RecordingProgress())
    (first, *updates, last) = events
    assert (first, last) == (("2 clients", 1, "s"), "end")
    assert sum(seconds for seconds, _ in updates) == 1
    assert {unit for _, unit in updates} == {"requests/s"}
