"""An open loop sends at its rate whatever the server does, and counts what comes of it."""

import socket

import pytest

from benchmarks.open_loop import open_loop
from benchmarks.workload import Workload
from pipework.errors import ConfigError
from pipework.progress import Silent

DROP = -1  # what makes the fake server close the connection without an answer


def run(url, rate=100.0, duration_s=1.0, texts=1):
    workload = Workload.synthetic(texts_per_request=texts, seed=0)
    return open_loop(url, workload, rate=rate, duration_s=duration_s, seed=1, progress=Silent())


def test_it_sends_at_its_rate_though_answers_take_long(serve):
    server = serve(delay_s=0.5)
    level = run(server.url)
    assert (level.sent, level.answered, level.errors) == (100, 100, {})
    assert server.most_at_once > 20  # a closed loop of as many clients would wait
    assert level.latency_ms.p50 >= 500


def test_refusals_are_told_apart_from_answers_and_errors(serve):
    outcomes = (200, 429, 503, DROP)
    level = run(serve(behave=lambda number: outcomes[number % 4]).url)
    assert level.answered + level.rejected + sum(level.errors.values()) == level.sent == 100
    assert (level.answered, level.rejected) == (25, 25)
    assert level.errors == {"HTTP 503": 25, "connection dropped": 25}
    assert level.rejected_ms.p50 > 0


def test_goodput_counts_texts_that_were_answered_in_time(serve):
    level = run(serve().url, texts=8)
    assert level.goodput == pytest.approx(8 * level.answered / level.duration_s, rel=0.1)
    assert run(serve(delay_s=3).url, rate=20).goodput == 0


def test_latency_counts_from_the_time_a_request_was_to_be_sent(serve):
    """A server that answers one after the other: who comes later waits for those before."""
    level = run(serve(delay_s=0.02).url, rate=20)
    assert level.latency_ms.p50 >= 20
    assert level.late <= level.sent


def test_where_no_server_listens_each_request_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    level = run(url, rate=20)
    assert (level.answered, level.latency_ms, level.errors) == (0, None, {"no connection": 20})


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "nowhere"])
def test_another_url_than_of_plain_http_is_refused(url):
    with pytest.raises(ConfigError, match="expected a URL of plain HTTP"):
        run(url)
