"""The response to the first request is checked before load is sent."""

import pytest

from pipework.benchmarks.load.outcome import first_response
from pipework.benchmarks.targets import target
from pipework.data.examples import Example
from pipework.errors import PipeError


def examples(count):
    return [Example(text=f"text {number}") for number in range(count)]


def test_the_first_response_contains_the_model_name(serve):
    server = serve()
    assert first_response(target(server.url), examples(3)) == "fake"
    assert len(server.bodies) == 1


def test_a_missing_server_is_reported_with_a_hint(closed_port):
    url = f"http://127.0.0.1:{closed_port}"
    with pytest.raises(PipeError) as caught:
        first_response(target(url), examples(1))
    assert str(caught.value) == f"no response from {url}: no connection"
    assert "pipe serve RUN" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "hint"),
    [(422, "--file"), (413, "--batch"), (404, "pipe serve"), (503, "pipe serve")],
)
def test_a_refused_first_request_is_reported_with_the_reason(serve, status, hint):
    server = serve(behave=lambda _: status)
    with pytest.raises(
        PipeError, match=f"/v1/predict refused the first request: HTTP {status}: not now$"
    ) as caught:
        first_response(target(server.url), examples(1))
    assert hint in caught.value.hint


def test_an_unexpected_response_is_reported():
    server_target = target("http://127.0.0.1:1")
    content = b'{"model": "fake", "predictions": [{}]}'
    assert server_target.check(content, 1) == "fake"
    with pytest.raises(PipeError, match="/v1/predict: expected a response with 2 predictions"):
        server_target.check(content, 2)
    with pytest.raises(PipeError, match="expected a response with 1 predictions"):
        server_target.check(b"<html>", 1)


def test_a_hanging_server_is_reported(serve, monkeypatch):
    monkeypatch.setattr("pipework.benchmarks.load.outcome.TIMEOUT_S", 0.1)
    server = serve(delay_s=0.5)
    with pytest.raises(PipeError, match=f"no response from {server.url} within"):
        first_response(target(server.url), examples(1))
