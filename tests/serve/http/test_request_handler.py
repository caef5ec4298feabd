"""Requests of every form get the same answer, and every request ends once."""

import asyncio
import json
import logging
import re
import threading
import zlib
from collections.abc import Sequence
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from pipework.errors import NotReadyError
from pipework.serve.config import LimitSettings
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.event_loop import TickShare
from pipework.serve.http.request_handler import call_app
from pipework.serve.http.request_parser import RequestHead
from pipework.serve.models.open_models import open_predictor
from pipework.serve.models.registry import Models
from pipework.serve.request.context import current_request
from pipework.serve.scheduling.predictor import Predictor
from pipework.tasks.predictions import Prediction, RegressionValue
from tests.serve.servers import TIMEOUT_S, MemoryServer, MemoryTransport, parsed

KEY = "first-key-0123456789"
BODY = b'{"texts": ["goal", "rain sun"]}'
HEAD = "POST {} HTTP/1.1\r\nHost: [::]\r\nX-Request-Id: mine\r\n"
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["goal"]}
INFER = json.dumps({"inputs": [TENSOR]}).encode()


def request(
    body: bytes = BODY, url: str = "/v1/predict", *headers: str, length: bool = True
) -> bytes:
    lines = [*headers, f"Content-Length: {len(body)}"] if length else headers
    return (HEAD.format(url) + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode() + body


def chunked(body: bytes, url: str = "/v1/predict") -> bytes:
    chunks = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    return request(chunks, url, "Transfer-Encoding: chunked", length=False)


@pytest.fixture(scope="module")
def predictor(run: Path):
    with open_predictor(run) as predictor:
        yield predictor


def exchange(
    predictor: Predictor, *parts: bytes, keys: Sequence[str] = (), answers: int = 1
) -> tuple[MemoryServer, list[tuple[int, dict[str, str], bytes]]]:
    server = MemoryServer(Models([predictor]), ApiKeys(keys))
    return server, asyncio.run(server.exchange(*parts, answers=answers))


@pytest.mark.parametrize("url", ["/v1/predict", "/v2/models/topics/infer"])
def test_a_large_response_is_written_outside_of_the_event_loop(
    predictor: Predictor, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    module = "pipework.serve." + ("inference_protocol.http" if "v2" in url else "http.rest")
    inner = import_module(module).write_response

    def write_response(*given: object) -> object:
        threads.append(threading.current_thread())
        return inner(*given)

    monkeypatch.setattr(f"{module}.write_response", write_response)
    monkeypatch.setattr("pipework.serve.scheduling.loop_bridge.INLINE_LOGITS", 0)
    sent = request(INFER if "v2" in url else BODY, url.replace("topics", predictor.name))
    _, ((status, _, _),) = exchange(predictor, sent)
    assert status == 200
    assert threads != [threading.main_thread()]


def test_the_texts_of_a_large_body_are_checked_outside_of_the_event_loop(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    monkeypatch.setattr(
        LimitSettings, "check_length", lambda *_: threads.append(threading.current_thread())
    )
    tensor = TENSOR | {"data": ["rain " * 10_000]}
    body = json.dumps({"inputs": [tensor]}).encode()
    _, ((status, _, _),) = exchange(predictor, request(body, f"/v2/models/{predictor.name}/infer"))
    assert status == 200
    assert len(threads) == 1
    assert threads != [threading.main_thread()]


@pytest.mark.parametrize(
    ("url", "body", "status"),
    [
        ("/v1/predict", BODY, 200),
        ("/v1/predict", b"", 400),
        ("/v1/predict", b"{", 400),
        ("/v1/predict", b'{"texts": []}', 422),
        ("/v1/predict", b'{"texts": ["a"], "model": "other"}', 404),
        ("/v1/predict", b'{"inputs": [{"text": "a", "text_pair": "b"}]}', 422),
        ("/v2/models/topics/infer", INFER, 200),
        ("/v2/models/topics/infer", b"{}", 400),
    ],
)
def test_a_chunked_body_gets_the_same_answer(
    predictor: Predictor, url: str, body: bytes, status: int
) -> None:
    url = url.replace("topics", predictor.name)
    one, (actual,) = exchange(predictor, request(body, url))
    other, (expected,) = exchange(predictor, chunked(body, url))
    assert actual[0] == expected[0] == status
    assert actual[1].keys() == expected[1].keys()
    same = actual[1].keys() - {"date", "server-timing"}
    assert {name: actual[1][name] for name in same} == {name: expected[1][name] for name in same}
    assert actual[1]["x-request-id"] == "mine"
    assert actual[2] == expected[2]
    (a,), (b,) = one.observed, other.observed
    assert (a.endpoint, a.id, a.status, a.texts) == (b.endpoint, b.id, b.status, b.texts)
    assert (a.model, a.version, a.succeeded) == (b.model, b.version, b.succeeded)
    assert a.status == str(status)


@pytest.mark.parametrize("slash", ["%2f", "%2F"])
def test_an_encoded_slash_separates_nothing(predictor: Predictor, slash: str) -> None:
    server, (answer,) = exchange(predictor, request(BODY, f"/v1{slash}predict"))
    assert answer[0] == 404
    assert server.observed == []


COMPRESSED = zlib.compress(BODY)


@pytest.mark.parametrize(
    "parts",
    [
        [request()],
        [request()[:40], request()[40:]],
        [request()[: -len(BODY)], BODY[:5], BODY[5:]],
        [bytes([byte]) for byte in request()],
        [request(BODY, "/v1/predict", "Accept-Encoding: gzip")],
        [request(BODY, "/v1/predict", "Upgrade: h2c", "Connection: Upgrade")],
        [request(BODY, "/v1/predict", "Expect: 100-continue")],
        [request(BODY, "/v1/predict?a=b")],
        [request(BODY, "http://a/v1/predict")],
        [request(BODY, "/v1/%70redict")],
        [request(COMPRESSED, "/v1/predict", "Content-Encoding: deflate")],
        [request(BODY, "/v1/predict", "Connection: close")],
        [request().replace(b"HTTP/1.1", b"HTTP/1.0")],
        [request(BODY.ljust(2**20))],
    ],
)
def test_requests_of_every_form_are_answered(predictor: Predictor, parts: list[bytes]) -> None:
    server, responses = exchange(predictor, *parts)
    (status, _, body) = responses[-1]
    assert status == 200, body
    assert [prediction["label"] for prediction in json.loads(body)["predictions"]] == [
        "sport",
        "weather",
    ]
    assert [context.status for context in server.observed] == ["200"]


def test_an_interim_response_is_sent_once_before_the_body(predictor: Predictor) -> None:
    server = MemoryServer(Models([predictor]))
    sent = request(BODY, "/v1/predict", "Expect: 100-continue")

    async def send() -> tuple[bytes, bytes]:
        opened, transport = server.connect()
        opened.data_received(sent[: -len(BODY)])
        opened.resume_writing()
        interim = transport.written
        opened.data_received(BODY)
        await transport.until_answered()
        return interim, transport.written

    interim, written = asyncio.run(send())
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert written.count(b"100 Continue") == 1


@pytest.mark.parametrize("decoded", ["%0A", "%00", "%7F"])
def test_a_control_character_in_the_path_is_rejected(predictor: Predictor, decoded: str) -> None:
    _, ((status, _, body),) = exchange(predictor, request(BODY, f"/v1/predict{decoded}"))
    assert (status, b"found a control character" in body) == (404, True)


def test_a_key_in_a_trailer_is_ignored(predictor: Predictor) -> None:
    sent = chunked(BODY)[:-2] + f"Authorization: Bearer {KEY}\r\n\r\n".encode()
    _, ((status, _, _),) = exchange(predictor, sent, keys=[KEY])
    assert status == 401


def test_a_bug_is_answered_500_and_logged(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(predictor, "predict", broken)
    with caplog.at_level(logging.ERROR):
        server, ((status, headers, body),) = exchange(predictor, request())
    assert status == 500
    assert json.loads(body)["error"].startswith("internal error")
    assert headers["x-request-id"] == "mine"
    assert "ZeroDivisionError" in caplog.text
    assert [context.status for context in server.observed] == ["500"]


class PanicError(BaseException):
    """Like the panic of a Rust library: not an Exception."""


def test_a_panic_is_answered_500_or_closes_the_connection(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(*_: object) -> None:
        raise PanicError

    with monkeypatch.context() as patched:
        patched.setattr("pipework.serve.http.rest.check_json_values", panics)
        server, ((status, _, _),) = exchange(predictor, request())
    assert status == 500
    assert [context.status for context in server.observed] == ["500"]
    monkeypatch.setattr("pipework.serve.http.exchange.Exchange.response_bytes", panics)

    async def is_closed() -> bool:
        opened, transport = server.connect()
        opened.data_received(request())
        await asyncio.wait({*server.state.tasks})
        await asyncio.sleep(0)
        return transport.closing

    server = MemoryServer(Models([predictor]), ApiKeys(()))
    assert asyncio.run(is_closed())
    assert [context.status for context in server.observed] == ["200"]


def test_the_responses_of_a_batch_are_sent_together(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer(Models([predictor]), ApiKeys(()))
    events: list[str] = []
    transports: list[MemoryTransport] = []

    async def predict(*_: object) -> list[Prediction]:
        await go.wait()
        events.append(f"decided {sum(len(transport.written) for transport in transports)}")
        return [RegressionValue(score=1.0)]

    async def both() -> None:
        for _ in range(2):
            opened, transport = server.connect()
            transports.append(transport)
            opened.data_received(request())
        await asyncio.sleep(0.01)
        go.set()
        for transport in transports:
            await asyncio.wait_for(transport.changed.wait(), TIMEOUT_S)

    go = asyncio.Event()
    monkeypatch.setattr(predictor, "predict", predict)
    asyncio.run(both())
    assert events == ["decided 0", "decided 0"]
    assert [context.status for context in server.observed] == ["200", "200"]


def test_a_failure_at_the_end_of_a_tick_is_logged_with_its_request(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer(Models([predictor]), ApiKeys(()))
    ids: list[str] = []

    def lose(*_: object) -> None:
        raise PanicError

    def note_id(_: logging.LogRecord) -> bool:
        context = current_request()
        assert context is not None
        ids.append(context.id)
        return True

    async def predict(*_: object) -> list[Prediction]:
        await go.wait()
        return [RegressionValue(score=1.0)]

    async def both() -> list[bool]:
        transports = []
        for name in (b"one", b"two"):
            opened, transport = server.connect()
            opened.data_received(request().replace(b"mine", name))
            transports.append(transport)
        await asyncio.sleep(0.01)
        go.set()
        for transport in transports:
            await asyncio.wait_for(transport.changed.wait(), TIMEOUT_S)
        return [transport.closing for transport in transports]

    go = asyncio.Event()
    monkeypatch.setattr(predictor, "predict", predict)
    monkeypatch.setattr(MemoryTransport, "write", lose)
    monkeypatch.setattr(caplog.handler, "filters", [note_id])
    assert asyncio.run(both()) == [True, True]
    assert sorted(ids) == ["one", "two"]
    assert "PanicError" in caplog.text


def test_a_disconnect_before_sending_is_counted_as_499(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer(Models([predictor]), ApiKeys(()))
    opened: list[Any] = []

    async def predict(*_: object) -> list[Prediction]:
        asyncio.get_running_loop().call_soon(opened[0].connection_lost, None)
        return [RegressionValue(score=1.0)]

    async def disconnect() -> bytes:
        connection, transport = server.connect()
        opened.append(connection)
        connection.data_received(request())
        await asyncio.wait({*server.state.tasks})
        await asyncio.sleep(0.01)
        return transport.written

    monkeypatch.setattr(predictor, "predict", predict)
    assert asyncio.run(disconnect()) == b""
    assert [context.status for context in server.observed] == ["499"]


def test_work_of_a_disconnected_client_is_cancelled_and_its_errors_are_not_logged(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer(Models([predictor]))
    ended: list[str] = []

    async def predict(*_: object) -> None:
        try:
            await asyncio.Future()
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")
            raise ZeroDivisionError

    async def disconnect() -> None:
        opened, transport = server.connect()
        opened.data_received(request() + request())
        await asyncio.sleep(0.01)
        opened.connection_lost(None)
        await asyncio.gather(*server.state.tasks)
        assert (ended, transport.written) == (["work"], b"")

    monkeypatch.setattr(predictor, "predict", predict)
    asyncio.run(asyncio.wait_for(disconnect(), TIMEOUT_S))
    assert [context.status for context in server.observed] == ["499", "499"]
    assert not caplog.records


def test_a_request_keeps_its_version_open_until_it_is_answered(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryServer(models := Models([predictor]))
    (leased,) = models.leases._models[predictor.name].values()  # noqa: SLF001
    held: list[int] = []

    async def predict(*_: object) -> list[Prediction]:
        held.append(leased.leases)
        return [RegressionValue(score=1.0)]

    monkeypatch.setattr(predictor, "predict", predict)
    for sent in (request(), request(b"{"), request(BODY, "/v1/predict", "Content-Encoding: br")):
        asyncio.run(server.exchange(sent))
        held.append(leased.leases)
    assert held == [1, 0, 0, 0]


def test_a_task_cancelled_before_it_starts_closes_the_connection(predictor: Predictor) -> None:
    server = MemoryServer(Models([predictor]), ApiKeys(()))

    async def end() -> bool:
        opened, transport = server.connect()
        opened.data_received(request())
        (task,) = server.state.tasks
        task.cancel()
        await asyncio.wait({task})
        return transport.closing

    assert asyncio.run(end())


def test_a_failure_while_an_error_is_handled_is_logged(
    predictor: Predictor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    server = MemoryServer(Models([predictor]), ApiKeys(()))
    monkeypatch.setattr("pipework.serve.http.request_handler.decompress", broken)
    monkeypatch.setattr("pipework.serve.http.request_handler.error_response", broken)

    async def is_closed() -> bool:
        opened, transport = server.connect()
        opened.data_received(request())
        await asyncio.wait({*server.state.tasks})
        return transport.closing

    assert asyncio.run(is_closed())
    logged = [record.name for record in caplog.records if record.exc_info]
    assert logged == ["pipework.serve.http.request_handler", "pipework.serve.http.connection"]


@pytest.mark.parametrize("sent", [request(), request()[:-5]], ids=["complete", "incomplete"])
def test_a_disconnect_is_counted_as_499(predictor: Predictor, sent: bytes) -> None:
    server = MemoryServer(Models([predictor]), ApiKeys(()))

    async def disconnect() -> None:
        opened, transport = server.connect()
        opened.data_received(sent)
        opened.connection_lost(ConnectionResetError())
        await asyncio.gather(*server.state.tasks, return_exceptions=True)
        assert transport.written == b""

    asyncio.run(asyncio.wait_for(disconnect(), TIMEOUT_S))
    assert [context.status for context in server.observed] == ["499"]


def test_an_incomplete_body_is_answered_408(predictor: Predictor) -> None:
    limits = LimitSettings(body_s=0.05)
    server = MemoryServer(Models([predictor]), ApiKeys(()), limits)
    (status, _, body), *_ = asyncio.run(server.exchange(request()[:-5]))
    assert status == 408
    assert b"the body of the request was not received within 0.05 s" in body
    assert [context.status for context in server.observed] == ["408"]


@pytest.mark.parametrize("cut", [0, 5])
def test_a_started_request_is_answered_when_the_server_stops(
    predictor: Predictor, cut: int
) -> None:
    server = MemoryServer(Models([predictor]), ApiKeys(()))
    sent = request()

    async def stop() -> list[tuple[int, dict[str, str], bytes]]:
        opened, transport = server.connect()
        opened.data_received(sent[: len(sent) - cut])
        opened.shutdown()
        assert not transport.closing
        if cut:
            opened.data_received(sent[-cut:])
        await transport.until(lambda: transport.closing)
        return parsed(transport.written)

    ((status, headers, _),) = asyncio.run(stop())
    assert (status, headers["connection"]) == (200, "close")


PART = b"a" * 2**20


def test_incomplete_bodies_are_limited_together_and_release_their_memory(
    predictor: Predictor,
) -> None:
    server = MemoryServer(
        Models([predictor]), limits=LimitSettings(received_bytes=8 * 2**20, body_bytes=2**20)
    )
    server.factory.parsing = TickShare(seconds=inf)  # one connection after the other
    head = request(PART)[: -len(PART)]

    async def fill() -> tuple[list[bytes], bytes]:
        opened = [server.connect() for _ in range(12)]
        for connection, _ in opened:
            connection.data_received(head + PART[:-1])
        first = [transport.written for _, transport in opened]
        small, transport = server.connect()
        small.data_received(request())
        await transport.until_answered()
        for connection, _ in opened:
            connection.connection_lost(None)
        await asyncio.sleep(0)
        return first, transport.written

    answers, small = asyncio.run(fill())
    # Three quarters are for large bodies.
    assert [len(parsed(written)) for written in answers] == [0] * 6 + [1] * 6
    ((status, headers, body),) = parsed(answers[-1])
    assert (status, headers["retry-after"]) == (429, "1")
    message = (
        r"the server holds 63\d{5} bytes of requests that are being received; send it again in"
    )
    assert re.match(message, json.loads(body)["error"])
    assert small.startswith(b"HTTP/1.1 200 OK")
    assert server.handler.memory.received.used == 0
    assert {context.status for context in server.observed} == {"200", "429", "499"}


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/predict", b'{"texts": ["%s"]}' % (b"rain " * 3000)),
        ("/v2/models/topics/infer", INFER.replace(b"goal", b"rain " * 3000)),
    ],
)
def test_requests_in_progress_are_limited_together(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, url: str, body: bytes
) -> None:
    limits = LimitSettings(processed_bytes=8 * len(body))
    server = MemoryServer(Models([predictor]), limits=limits)
    url = url.replace("topics", predictor.name)
    go = asyncio.Event()

    async def wait(*_: object) -> None:
        await go.wait()
        raise NotReadyError("ended")  # noqa: EM101

    async def fill() -> list[int]:
        opened = [server.connect() for _ in range(6)]
        for connection, _ in opened:
            connection.data_received(request(zlib.compress(body), url, "Content-Encoding: deflate"))
        # On a busy machine connections are parsed in several ticks, so that tasks start later.
        while not any(parsed(transport.written) for _, transport in opened):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        go.set()
        statuses = [(await transport.until_answered())[0][0] for _, transport in opened]
        await asyncio.sleep(0.01)
        return statuses

    monkeypatch.setattr(predictor, "predict", wait)
    monkeypatch.setattr(predictor, "answer", wait)
    statuses = asyncio.run(asyncio.wait_for(fill(), TIMEOUT_S))
    assert {*statuses} == {429, 503}
    assert server.handler.memory.processed.used == 0
    assert server.handler.memory.received.used == 0


app = FastAPI()


@app.post("/echo")
async def echo(request: Request, name: str) -> dict[str, str]:
    return {"name": name, "body": (await request.body()).decode()}


@app.get("/parts")
async def parts() -> StreamingResponse:
    return StreamingResponse(iter(["a", "b"]), headers={"x-own": "1"})


@app.get("/file")
async def file() -> FileResponse:
    return FileResponse(__file__)


@app.get("/nothing")
async def nothing() -> Response:
    return Response(status_code=204)


def call(method: str, path: str, query: bytes = b"", body: bytes = b"") -> Response:
    head = RequestHead(method=method, path=path, query=query)
    return asyncio.run(asyncio.wait_for(call_app(app, head, body), 30))


def test_the_app_gets_the_query_and_the_body() -> None:
    response = call("POST", "/echo", b"name=%C3%A9", b"text")
    assert (response.status_code, bytes(response.body)) == (
        200,
        '{"name":"é","body":"text"}'.encode(),
    )


def test_a_streamed_response_is_collected_and_gets_a_length() -> None:
    response = call("GET", "/parts")
    assert (bytes(response.body), response.headers["x-own"]) == (b"ab", "1")
    assert response.headers["content-length"] == "2"
    assert len(call("GET", "/file").body) > 1000


def test_a_response_without_a_body_has_no_length() -> None:
    assert "content-length" not in call("GET", "/nothing").headers


def test_an_app_that_sends_nothing_is_an_error() -> None:
    async def silent(*_: object) -> None:
        pass

    with pytest.raises(RuntimeError, match="no response to GET /a"):
        asyncio.run(call_app(silent, RequestHead(method="GET", path="/a"), b""))
