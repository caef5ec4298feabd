"""The first answer decides whether load is worth sending."""

import socket

import pytest

from pipework.benchmarks.load.outcome import first_answer
from pipework.benchmarks.targets import target
from pipework.data.examples import Example
from pipework.errors import ConfigError, PipeError


def examples(count):
    return [Example(text=f"text {number}") for number in range(count)]


def test_the_probe_names_the_model(serve):
    server = serve()
    assert first_answer(target(server.url), examples(3)).model == "fake"
    assert len(server.bodies) == 1


def test_an_absent_server_is_one_line_with_a_hint():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(PipeError) as caught:
        first_answer(target(url), examples(1))
    assert str(caught.value) == f"no server answers at {url}: no connection"
    assert "pipe serve RUN" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "hint"),
    [(422, "--file"), (413, "--batch"), (404, "pipe serve"), (503, "pipe serve")],
)
def test_a_server_that_refuses_is_one_line_with_its_reason(serve, status, hint):
    server = serve(behave=lambda _: status)
    with pytest.raises(PipeError, match=f"refused the first request: HTTP {status}: not now$") as c:
        first_answer(target(server.url), examples(1))
    assert hint in c.value.hint


def test_a_server_that_answers_something_else_is_told_from_ours(serve):
    asked = target(serve().url)
    answer = first_answer(asked, examples(1)).content
    with pytest.raises(PipeError, match="/v1/predict answered, but not with the 2 predictions"):
        asked.check(answer, 2)
    with pytest.raises(PipeError, match="not with the 1 predictions expected"):
        asked.check(b"<html>", 1)


def test_a_server_that_hangs_is_told(serve, monkeypatch):
    monkeypatch.setattr("pipework.benchmarks.load.outcome.PATIENCE_S", 0.1)
    server = serve(delay_s=0.5)
    with pytest.raises(PipeError, match=f"no server answers at {server.url}: timeout"):
        first_answer(target(server.url), examples(1))


def test_what_is_no_url_is_said():
    for url in ("http://", "nowhere", "ftp://127.0.0.1", "http://127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="is not a URL"):
            target(url)
