import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipework.client import Client
from pipework.client.address import ClientOptions, HttpConnection, ServerUrl
from pipework.client.client import _is_own_server
from pipework.client.http import HttpTransport, RestTransport
from pipework.errors import (
    ConfigError,
    InputError,
    NotReadyError,
    PipeError,
    TooBusyError,
    TooLargeError,
    UnknownModelError,
)
from pipework.run_folder.manifest import TrainingReadOptions, read_manifest
from pipework.tasks.predictions import MultiLabel, Prediction, RegressionValue, SingleLabel


def client_of(
    status: int, body: bytes, headers: dict[str, str] | None = None, url: str = "http://fake"
) -> Client:
    """A client whose server always answers the same."""
    client = Client(url)
    transport = httpx.MockTransport(lambda _: httpx.Response(status, headers=headers, content=body))
    web = HttpConnection("http://fake", ClientOptions(timeout_s=1), transport)
    client._transport = RestTransport(web, ServerUrl.of(url))  # noqa: SLF001
    return client


def test_texts_are_classified(server) -> None:
    with Client(server.url) as client:
        predictions = client.predict(["rain", "goal"], top_k=2)
    assert [one.label for one in predictions] == ["weather", "sport"]
    assert len(predictions[0].scores) == 2


def test_truncated_texts_are_marked_by_every_transport(server) -> None:
    texts = ["rain", "rain " * 40, "sun", "goal " * 300]
    name = httpx.get(f"{server.url}/v1/status").json()["models"][0]["name"]
    rest, http = Client(server.url), Client(server.url)
    http._transport = HttpTransport(  # noqa: SLF001  (the client selects REST for this server)
        HttpConnection(server.url, ClientOptions(timeout_s=30)), ServerUrl.of(server.url)
    )
    for client in (rest, http, Client(f"grpc://{server.grpc}/v2/models/{name}")):
        with client:
            predictions = client.predict(texts)
        assert [one.truncated for one in predictions] == [False, True, False, True]
        assert [one.label for one in predictions] == ["weather", "weather", "weather", "sport"]


def test_the_read_options_of_the_training_data_are_those_of_the_server(
    pair_run: Path, start_server: Callable[[Path], Any]
) -> None:
    pairs = start_server(pair_run)
    with Client(pairs.url) as rest, Client(f"grpc://{pairs.grpc}") as grpc:
        of_run = TrainingReadOptions.of(read_manifest(pair_run).data)
        assert (of_run.text, of_run.text_pair, of_run.header) == (0, 1, False)
        assert rest.read_options() == of_run
        assert grpc.read_options() == TrainingReadOptions.of_inputs(["text", "text_pair"])


def status_of(*models: object) -> bytes:
    names = dict.fromkeys(name for name, *_ in models)
    versions = {
        name: [
            {"version": version, "inputs": inputs, "reading": reading}
            for other, version, inputs, reading in models
            if other == name
        ]
        for name in names
    }
    status = {"models": [{"name": name, "versions": versions[name]} for name in names]}
    return json.dumps(status).encode()


TITLES = {"text": "title", "text_pair": None, "label": "x", "format": "csv", "header": True}
SERVED = (
    ("topics", "1", ["text"], None),
    ("topics", "2", ["text"], {**TITLES, "suffix": ".csv", "of_a_newer_server": 1}),
    ("pairs", "7", ["text", "text_pair"], None),
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("topics", TrainingReadOptions(**TITLES, suffix=".csv")),
        ("topics/versions/2", TrainingReadOptions(**TITLES, suffix=".csv")),
        ("topics/versions/1", TrainingReadOptions.of_inputs(["text"])),
        ("pairs", TrainingReadOptions.of_inputs(["text", "text_pair"])),
    ],
)
def test_the_read_options_are_those_of_the_model_in_the_url(
    model: str, expected: TrainingReadOptions
) -> None:
    with client_of(200, status_of(*SERVED), url=f"http://fake/v2/models/{model}") as client:
        assert client.read_options() == expected


def test_the_read_options_of_one_of_several_models_need_its_name() -> None:
    with (
        client_of(200, status_of(*SERVED)) as client,
        pytest.raises(
            UnknownModelError, match="one text model at http://fake, found topics, pairs"
        ),
    ):
        client.read_options()


@pytest.mark.parametrize("status", [403, 404, 501])
def test_a_server_without_status_has_no_read_options(status: int) -> None:
    with client_of(status, b"<html>") as client:
        assert client.read_options() is None


def test_the_read_options_need_the_key_of_the_server() -> None:
    with (
        client_of(401, b'{"error": "expected an API key"}') as client,
        pytest.raises(PipeError, match="expected an API key"),
    ):
        client.read_options()


def test_pairs_are_classified(pair_run: Path, start_server: Callable[[Path], Any]) -> None:
    with Client(start_server(pair_run).url) as client:
        predictions = client.predict_pairs([("rain", "goal"), ("goal", "bank")])
    assert [one.label for one in predictions] == ["sport", "money"]


def test_texts_with_entities_are_classified(
    entity_run: Path, start_server: Callable[[Path], Any]
) -> None:
    with Client(start_server(entity_run).url) as client:
        (marked,) = client.predict(["<e1>rain</e1> and <e2>goal</e2>"])
        (spans,) = client.predict_entities([("rain and goal", ((0, 4), (9, 13)))])
        with pytest.raises(InputError, match=r"input 0: entity e2 is \[9, 14\]"):
            client.predict_entities([("rain and goal", ((0, 4), (9, 14)))])
    assert marked == spans
    assert marked.label == "sport"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"label": "x", "score": 0.5, "scores": {"x": 0.5}},
            SingleLabel(label="x", score=0.5, scores={"x": 0.5}),
        ),
        (
            {"labels": [], "scores": {"x": 0.5}},
            MultiLabel(labels=(), scores={"x": 0.5}),
        ),
        ({"score": 2.5}, RegressionValue(score=2.5)),
    ],
)
def test_every_kind_of_prediction_is_parsed(
    answer: dict[str, object], expected: Prediction
) -> None:
    body = {"model": "m", "version": "1", "predictions": [answer]}
    with client_of(200, json.dumps(body).encode()) as client:
        assert client.predict(["a"]) == [expected]


@pytest.mark.parametrize("transport", ["http", "v2", "grpc"])
@pytest.mark.parametrize("texts", [["a"] * 2000, ["a" * 100_001]], ids=["texts", "characters"])
def test_a_request_that_is_too_large_has_the_same_error_over_all_transports(
    server, transport: str, texts: list[str]
) -> None:
    client = Client(f"grpc://{server.grpc}" if transport == "grpc" else server.url)
    if transport == "v2":
        client._transport = HttpTransport(  # noqa: SLF001  (the client selects REST for this server)
            HttpConnection(server.url, ClientOptions(timeout_s=30)), ServerUrl.of(server.url)
        )
    with client, pytest.raises(TooLargeError, match="expected at most 10"):
        client.predict(texts)


def test_a_message_above_the_limit_of_the_server_is_too_large_and_not_retried(server) -> None:
    with (
        Client(f"grpc://{server.grpc}", retries=2) as client,
        pytest.raises(TooLargeError, match="larger than max"),
    ):
        client.predict(["a" * 90_000] * 50)


def test_an_invalid_request_is_refused_before_it_is_sent() -> None:
    with Client("http://unused") as client:
        with pytest.raises(InputError, match="texts: expected at least one"):
            client.predict([])
        with pytest.raises(InputError, match=r"texts\[1\]: expected a valid string"):
            client.predict(["a", 5])  # type: ignore[list-item]
        with pytest.raises(InputError, match="lone surrogate"):
            client.predict(["\ud800"])


@pytest.mark.parametrize("status", [200, 404, 502])
def test_a_response_of_another_kind_of_server_is_reported(status: int) -> None:
    with client_of(status, b"<html>") as client, pytest.raises(PipeError) as caught:
        client.predict(["a"])
    expected = "expected JSON of pipework from http://fake/v1/predict, found"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("texts", ["abc", b"abc", 5])
def test_a_single_text_is_refused_with_a_hint(texts: object) -> None:
    with Client("http://unused") as client:
        for predict in (client.predict, client.predict_pairs, client.predict_entities):
            with pytest.raises(InputError, match=r"expected a list of .*, found (str|bytes|int)"):
                predict(texts)  # type: ignore[operator]
        with pytest.raises(InputError) as caught:
            client.predict("abc")
    assert caught.value.hint == "put a single text into a list: [text]"


def test_an_input_of_another_form_is_refused() -> None:
    with Client("http://unused") as client:
        for pairs in (["ab"], [("a",)], [("a", "b", "c")], [("a", 5)], [("a", "\ud800")]):
            with pytest.raises(InputError):
                client.predict_pairs(pairs)  # type: ignore[arg-type]
        for item in ("text", ("text",), ("text", 5), ("text", (0, 1)), ("text", ((0,), (1, 2)))):
            with pytest.raises(InputError):
                client.predict_entities([item])  # type: ignore[list-item]
        with pytest.raises(InputError, match="top_k"):
            client.predict(["a"], top_k=0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_response_with_another_number_of_predictions_is_refused(count: int) -> None:
    body = {"model": "m", "version": "1", "predictions": [{"score": 2.5}] * count}
    expected = f"http://fake: expected 2 predictions, found {count}"
    with client_of(200, json.dumps(body).encode()) as client:
        with pytest.raises(PipeError, match=expected):
            client.predict(["a", "b"])
        with pytest.raises(PipeError, match=expected):
            client.predict_pairs([("a", "b"), ("c", "d")])


@pytest.mark.parametrize("key", ["secret\n", "secret key", "schlüssel", "secret\r\nX: y", "\ud800"])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_printed(scheme: str, key: str) -> None:
    with pytest.raises(ConfigError, match="API key: expected printable ASCII") as caught:
        Client(f"{scheme}://127.0.0.1:9", key=key)
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 86_401, 1e12])
def test_a_timeout_that_cannot_be_sent_is_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="timeout_s: expected seconds above 0 and at most 86400"):
        Client("http://127.0.0.1:9", timeout_s)


@pytest.mark.parametrize(
    ("name", "value"), [("SSL_CERT_FILE", "/none"), ("SSL_CERT_FILE", __file__)]
)
def test_a_wrong_setting_of_the_environment_is_reported(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with (
        Client("https://127.0.0.1:9") as client,
        pytest.raises(ConfigError, match=r"https://127\.0\.0\.1:9 cannot be used: ") as caught,
    ):
        client.predict(["a"])
    assert name in caught.value.hint


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_closed_client_sends_nothing(scheme: str) -> None:
    client = Client(f"{scheme}://127.0.0.1:9")
    client.close()
    with pytest.raises(PipeError, match="the client is closed"):
        client.predict(["a"])
    assert not client.ready()


def test_a_response_that_is_not_valid_in_its_encoding_is_reported() -> None:
    broken = client_of(200, b"no gzip data", {"Content-Encoding": "gzip"})
    with broken as client, pytest.raises(PipeError, match="http://fake cannot be reached"):
        client.predict(["a"])


def test_an_unreachable_server_is_reported_with_a_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with Client(url) as client:
        assert not client.ready()
        with pytest.raises(PipeError, match="cannot be reached") as caught:
            client.predict(["a"])
    assert "pipe serve RUN" in caught.value.hint


def test_a_server_that_does_not_respond_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, timeout_s=0.2) as client,
            pytest.raises(PipeError, match=r"did not respond within 0\.2 s"),
        ):
            client.predict(["a"])


def test_ready_is_false_for_a_stopping_server(server) -> None:
    with Client(server.url) as client:
        assert client.ready()
    with client_of(503, b'{"error": "the server is stopping"}') as client:
        assert not client.ready()


FOUND = b'{"model": "m", "version": "1", "predictions": [{"score": 2.5}]}'


def over(
    client: Client, answers: list[httpx.Response | httpx.TransportError]
) -> list[httpx.Request]:
    """Give a client these responses or errors in turn; return the list of the requests it sends."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        found = answers[min(len(sent), len(answers)) - 1]
        if isinstance(found, httpx.TransportError):
            raise found
        return found

    web = HttpConnection("http://fake", client._options, httpx.MockTransport(answer))  # noqa: SLF001
    client._transport = RestTransport(web, client._url)  # noqa: SLF001
    return sent


def test_key_deadline_priority_and_model_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPEWORK_API_KEY", "from-outside")
    url = "http://fake/v2/models/m/versions/3"
    for client, key in (
        (Client(url, 2.5, bulk=True), "from-outside"),
        (Client(url, 2.5, bulk=True, key="mine"), "mine"),
    ):
        (request,) = asked(client)
        assert request.headers["Authorization"] == f"Bearer {key}"
        assert request.headers["X-Request-Timeout-Ms"] == "2500"
        assert request.headers["X-Priority"] == "bulk"
        assert json.loads(request.content) == {"texts": ["a"], "model": "m", "version": "3"}
    (request,) = asked(Client("http://fake", key=""))
    assert "Authorization" not in request.headers
    assert "X-Priority" not in request.headers


def asked(client: Client) -> list[httpx.Request]:
    sent = over(client, [httpx.Response(200, content=FOUND)])
    with client:
        assert client.predict(["a"]) == [RegressionValue(score=2.5)]
    return sent


BUSY = httpx.Response(429, headers={"Retry-After": "7"}, json={"error": "full"})
AWAY = httpx.Response(503, json={"error": "away"})


def test_a_refused_request_is_retried_after_retry_after_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    with Client("http://fake", retries=3) as client:
        monkeypatch.setattr(client._closed, "wait", slept.append)  # noqa: SLF001
        sent = over(client, [BUSY, AWAY, AWAY, httpx.Response(200, content=FOUND)])
        assert client.predict(["a"]) == [RegressionValue(score=2.5)]
        assert len(sent) == 4
        assert slept[0] == 7
        assert 0.5 <= slept[1] <= 1 <= slept[2] <= 2
        sent = over(client, [BUSY])
        with pytest.raises(TooBusyError):
            client.predict(["a"])
        assert len(sent) == 4
    with Client("http://fake") as client:  # as it is, none is
        sent = over(client, [BUSY])
        with pytest.raises(TooBusyError):
            client.predict(["a"])
        assert len(sent) == 1


def test_a_request_whose_connection_is_lost_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, found = httpx.ReadError("Connection reset by peer"), httpx.Response(200, content=FOUND)
    with Client("http://fake", retries=2) as client:
        monkeypatch.setattr(client._closed, "wait", lambda _: False)  # noqa: SLF001
        sent = over(client, [found, lost, found, lost])
        for _ in range(2):
            assert client.predict(["a"]) == [RegressionValue(score=2.5)]
        assert len(sent) == 3
        with pytest.raises(NotReadyError, match="http://fake cannot be reached: Conn") as caught:
            client.predict(["a"])
        assert len(sent) == 6
        assert "send the request again, or use retries" in caught.value.hint
        sent = over(client, [lost])  # it has never answered: is the address wrong?
        with pytest.raises(PipeError, match="http://fake cannot be reached: Conn") as caught:
            client.predict(["a"])
        assert (len(sent), type(caught.value)) == (1, PipeError)


def test_close_stops_retries() -> None:
    client = Client("http://fake", retries=5)
    sent = over(client, [BUSY])
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.predict, ["a"])
        while not sent:
            time.sleep(0.01)
        client.close()
        with pytest.raises(TooBusyError):
            answer.result(5)
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("status", "body", "ours"),
    [
        (200, b'{"name": "pipework"}', True),
        (200, b'{"name": "triton"}', False),
        (404, b"", True),
        (200, b"<html>", True),
        (200, b"[]", True),
    ],
)
def test_the_name_of_the_server_selects_the_transport(
    status: int, body: bytes, *, ours: bool
) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    with HttpConnection("http://fake", ClientOptions(timeout_s=1), transport) as web:
        assert _is_own_server(web) is ours


def test_the_client_loads_neither_server_nor_engine() -> None:
    heavy = {"fastapi", "uvicorn", "onnxruntime", "grpc"}
    code = f"import sys, pipework.client; print({heavy} & {{*sys.modules}})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "set()\n"
