"""Closed and open loops, with callers in memory and local servers."""

import asyncio
import gc
from contextlib import contextmanager

import pytest

from pipework.benchmarks.load import outcome
from pipework.benchmarks.load.level import LoadSpec, MeasuredLevel, OfferedLoad
from pipework.benchmarks.load.loops import closed_loop, drive, open_loop
from pipework.benchmarks.load.outcome import send_request
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.targets import target
from pipework.progress import NullProgress

SPEC = LoadSpec(
    workload=Workload.synthetic(texts_per_request=2, seed=0),
    load=OfferedLoad(concurrency=3),
    warmup_s=0.0,
    duration_s=60.0,
)


class RecordingProgress(NullProgress):
    """Records the begin and the end of each stage, and its advances."""

    def __init__(self):
        self.events = []

    @contextmanager
    def stage(self, title, total, unit):
        self.events.append((title, total, unit))
        try:
            yield
        finally:
            self.events.append("end")

    def advance(self, count, figures=None):
        self.events.append((count, *figures))


async def send_five(caller, requests, run):
    for request in requests[:5]:
        run.outcomes.append(await send_request(caller, request))


def test_a_level_ends_when_all_requests_have_been_answered(serve):
    server = serve()
    measured = drive(target(server.url), SPEC, send_five, NullProgress())
    level, latencies_s = measured.level, measured.latencies_s
    assert (level.requests, level.texts, level.concurrency) == (5, 10, 3)
    assert len(server.bodies) == len(latencies_s) == 5
    assert max(latencies_s) * 1e3 == pytest.approx(level.latency_ms.max, abs=0.01)
    assert level.generator_cores > 0


def test_progress_is_ended_and_garbage_collection_enabled_after_an_error(serve):
    seen = []

    async def fail(*_):
        await asyncio.sleep(0)
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    progress = RecordingProgress()
    with pytest.raises(ZeroDivisionError):
        drive(target(serve().url), SPEC, fail, progress)
    assert progress.events == [("3 clients", 60, "s"), "end"]
    assert seen == [False]
    assert gc.isenabled()


DROP = -1  # the fake server closes the connection without a response


def run(server, *, concurrency=1, duration_s=0.6, warmup_s=0.0, progress=None):
    spec = LoadSpec(
        workload=Workload.synthetic(texts_per_request=1, seed=0),
        load=OfferedLoad(concurrency=concurrency),
        warmup_s=warmup_s,
        duration_s=duration_s,
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
    level = run(server, concurrency=2, duration_s=30)
    assert level.duration_s < 10
    assert level.errors == {"HTTP 429": 1, "HTTP 500": 1, "connection dropped": 2}
    assert level.failed == 4
    assert level.requests == 16


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


def test_progress_reports_seconds_and_rates_and_ends(serve):
    progress = RecordingProgress()
    run(serve(delay_s=0.02), concurrency=2, duration_s=1.1, progress=progress)
    (first, *updates, last) = progress.events
    assert (first, last) == (("2 clients", 1, "s"), "end")
    assert sum(seconds for seconds, _ in updates) == 1
    assert {unit for _, unit in updates} == {"requests/s"}


def run_open(url, rate=100.0, texts=1, arrivals=Arrivals.CONSTANT, **duration):
    seconds = {"warmup_s": 0.0, "duration_s": 1.0} | duration
    spec = LoadSpec(
        workload=Workload.synthetic(texts_per_request=texts, seed=0),
        load=OfferedLoad(rate=rate, arrivals=arrivals),
        **seconds,
    )
    return open_loop(target(url), spec, NullProgress(), seed=1).level


def test_requests_are_sent_at_the_rate_even_if_responses_are_slow(serve):
    server = serve(delay_s=0.5)
    level = run_open(server.url)
    assert level.sent == level.requests == pytest.approx(100, abs=1)
    assert level.errors == {}
    assert server.most_at_once > 20  # a closed loop would wait
    assert level.latency_ms.p50 >= 500


def test_refusals_successes_and_errors_are_counted_separately(serve):
    outcomes = (200, 429, 503, DROP)
    level = run_open(serve(behave=lambda number: outcomes[number % 4]).url)
    assert level.requests + level.failed == level.sent == pytest.approx(100, abs=1)
    assert level.requests == pytest.approx(25, abs=1)
    assert set(level.errors) == {"HTTP 429", "HTTP 503", "connection dropped"}
    assert all(count == pytest.approx(25, abs=1) for count in level.errors.values())


@pytest.mark.slow
def test_goodput_counts_texts_answered_in_time(serve):
    level = run_open(serve().url, texts=8)
    # The machine may stall; the last requests are then answered after the end of the level.
    answered = 8 * level.requests / level.duration_s
    assert 0.5 * answered < level.texts_per_s <= 1.01 * answered
    assert run_open(serve(delay_s=3).url, rate=20).texts_per_s == 0


def test_random_arrivals_are_a_poisson_process_of_the_seed(serve):
    server = serve()
    first, second = (run_open(server.url, rate=200, arrivals=Arrivals.POISSON) for _ in range(2))
    assert first.sent == pytest.approx(200, abs=60)  # four standard deviations
    assert first.sent == pytest.approx(second.sent, abs=2)
    assert first.arrivals is Arrivals.POISSON


def test_no_request_is_sent_before_its_intended_time(serve, monkeypatch):
    seen = []

    def record_outcomes(measurement, *_):
        seen.extend(measurement.outcomes)
        return MeasuredLevel(level=None, latencies_s=())

    monkeypatch.setattr("pipework.benchmarks.load.loops.level", record_outcomes)
    run_open(serve().url, rate=300)
    assert len(seen) > 200
    assert all(outcome.sent_s >= outcome.intended_s for outcome in seen)


def test_requests_of_the_warm_up_are_not_counted(serve):
    server = serve(behave=lambda number: 500 if number < 10 else 200)
    level = run_open(server.url, warmup_s=1.0)
    assert level.errors == {}
    assert level.sent < len(server.bodies) - 10
