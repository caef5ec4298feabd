"""Load is generated, measured and counted as promised, against servers of known behaviour."""

import socket

import pytest

from benchmarks import load
from benchmarks.load import Outcome, closed_loop, probe, summarise
from benchmarks.workload import Workload
from pipework.errors import PipeError
from pipework.progress import Silent

DROP = -1  # what makes the fake server close the connection without an answer


def run(server, *, concurrency=1, texts=1, duration_s=0.6, warmup_s=0.0):
    workload = Workload.synthetic(texts_per_request=texts, seed=0)
    return closed_loop(
        server.url,
        workload,
        concurrency=concurrency,
        duration_s=duration_s,
        warmup_s=warmup_s,
        progress=Silent(),
    )


def outcome(start_s, end_s, error=None):
    return Outcome(start_s=start_s, end_s=end_s, error=error)


def test_four_clients_get_four_times_the_answers_of_a_server_that_only_waits(serve):
    server = serve(delay_s=0.05)
    # Interleaved, and the best of three: a busy machine can only take answers away.
    pairs = [(run(server), run(server, concurrency=4)) for _ in range(3)]
    one, four = (max(level.texts_per_s for level in levels) for levels in zip(*pairs, strict=True))
    assert 2.5 < four / one < 5.5


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
    found = run(server, duration_s=0.4, warmup_s=0.4)
    assert found.errors == {}
    assert found.requests < len(server.bodies) - 3
    assert 0.35 < found.duration_s <= 0.4


def test_a_level_counts_rates_in_the_window_and_latencies_to_the_last_answer():
    outcomes = [
        outcome(0.0, 0.9),  # the warm-up, which ends at 1.0
        outcome(0.9, 1.4),
        outcome(1.4, 2.9),
        outcome(2.9, 4.9),  # in flight when the window closes at 3.0
        outcome(0.0, 0.5, "HTTP 500"),
        outcome(1.0, 1.5, "HTTP 429"),
        outcome(2.0, 5.0, "timeout"),
    ]
    found = summarise(outcomes, (1.0, 3.0), 2, 4)
    assert (found.requests, found.texts) == (3, 12)
    assert (found.requests_per_s, found.texts_per_s) == (1.0, 4.0)
    assert found.latency_ms.max == 2000
    assert found.errors == {"HTTP 429": 1, "timeout": 1}


def test_a_level_without_a_success_has_no_latencies():
    found = summarise([outcome(0.0, 0.1, "HTTP 500")], (0.0, 1.0), 1, 1)
    assert (found.latency_ms, found.histogram, found.texts_per_s) == (None, None, 0)


def test_errors_are_counted_by_kind_and_do_not_end_the_run(serve):
    kinds = {0: 429, 1: 500, 2: DROP, 3: DROP}
    found = run(serve(delay_s=0.005, behave=lambda number: kinds.get(number, 200)))
    assert found.errors == {"HTTP 429": 1, "HTTP 500": 1, "connection dropped": 2}
    assert found.failed == 4
    assert found.requests > 5


def test_only_successes_have_latencies(serve):
    server = serve(delay_s=0.005, behave=lambda number: 500 if number % 2 else 200)
    found = run(server)
    assert sum(found.histogram.counts) == found.requests
    assert found.requests + found.failed == len(server.bodies)


def test_a_server_that_hangs_is_a_timeout(serve, monkeypatch):
    monkeypatch.setattr(load, "TIMEOUT_S", 0.1)
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
    monkeypatch.setattr(load, "MAX_REQUESTS", 7)
    server = serve()
    found = run(server, concurrency=2, duration_s=30)
    assert len(server.bodies) == found.requests == 7
    assert found.duration_s < 10


def test_the_probe_names_the_model(serve):
    server = serve()
    assert probe(server.url, Workload.synthetic(texts_per_request=3, seed=0)) == "fake"
    assert len(server.bodies) == 1


def test_an_absent_server_is_one_line_with_a_hint():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(PipeError) as caught:
        probe(url, Workload.synthetic(texts_per_request=1, seed=0))
    assert str(caught.value) == f"no server answers at {url}: no connection"
    assert "pipe serve RUN" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "hint"),
    [(422, "--file"), (413, "--batch"), (404, "pipe serve"), (503, "pipe serve")],
)
def test_a_server_that_refuses_is_one_line_with_its_reason(serve, status, hint):
    server = serve(behave=lambda _: status)
    with pytest.raises(PipeError, match=f"refused the first request: HTTP {status}: not now$") as c:
        probe(server.url, Workload.synthetic(texts_per_request=1, seed=0))
    assert hint in c.value.hint


def test_a_server_of_another_kind_is_told_from_ours(serve, monkeypatch):
    server = serve()
    monkeypatch.setattr(Workload, "bodies", lambda _self: [b'{"texts": ["only one"]}'])
    with pytest.raises(PipeError, match="not with the 2 predictions expected"):
        probe(server.url, Workload.synthetic(texts_per_request=2, seed=0))


def test_what_is_no_url_is_said():
    with pytest.raises(PipeError, match="is not a URL"):
        probe("http://", Workload.synthetic(texts_per_request=1, seed=0))


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
        serve(delay_s=0.02).url,
        workload,
        concurrency=2,
        duration_s=1.1,
        warmup_s=0.0,
        progress=Listener(),
    )
    assert heard == [("2 clients", 1, "s"), (1, "requests/s"), "end"]
