"""Requests are rejected from their heads when the queue is full; the connection stays usable."""

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from pipework.errors import NotReadyError, PipeError, TooBusyError
from pipework.serve.http.admission import Admission, AdmissionMiddleware
from pipework.serve.http.auth import ApiKeys
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import RequestContext

FULL = TooBusyError("the queue is full: 9 requests, 900 tokens wait", 3)
KEY = "first-key-0123456789"
MANY = {"texts": ["#" * 32] * 20_000}  # few bytes, but long to compute
BODY = b'{"texts": ["goal"]}'
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\nContent-Length: 19\r\n\r\n"


@dataclass
class FakeVersion:
    """A model version with an error, such as a full queue."""

    error: PipeError | None
    ready: bool = True
    name: str = "topics"
    version: str = "1"

    def check_room(self) -> None:
        if self.error:
            raise self.error


def admission(version: FakeVersion, *keys: str) -> tuple[Admission, list[RequestContext]]:
    models = Models([version])  # type: ignore[list-item]
    observers, observed = Observers(models), []
    observers.finish = observed.append  # type: ignore[method-assign]
    return Admission(models, ApiKeys(keys), observers), observed


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("/v1/predict", "v1"),
        ("/v2/models/topics/infer", "v2"),
        ("/v2/models/topics/versions/1/infer", "v2"),
    ],
)
def test_a_request_to_a_full_queue_is_rejected_and_observed(url: str, endpoint: str) -> None:
    checker, observed = admission(FakeVersion(FULL))
    refusal = checker.refusal(url, [(b"host", b"a"), (b"x-request-id", b"mine")], {})
    assert refusal is not None
    assert refusal.status == 429
    assert dict(refusal.headers) == {b"Retry-After": b"3", b"x-request-id": b"mine"}
    assert json.loads(refusal.body) == {"error": f"{FULL}; send it again in 3 s"}
    (context,) = observed
    assert (context.endpoint, context.id, context.status) == (endpoint, "mine", "429")
    assert (context.model, context.version) == ("topics", "1")


@pytest.mark.parametrize(
    ("url", "version"),
    [
        ("/v1/predict", FakeVersion(None)),
        ("/v1/predict", FakeVersion(NotReadyError("stopping"))),
        ("/v1/predict", FakeVersion(FULL, ready=False)),
        ("/v1/predict?a=b", FakeVersion(FULL)),
        ("/v2/models/other/infer", FakeVersion(FULL)),
        ("/v2/models/topics/versions/2/infer", FakeVersion(FULL)),
        ("/v2/models/topics", FakeVersion(FULL)),
        ("/v2/models/%74opics/infer", FakeVersion(FULL)),
        ("/healthz", FakeVersion(FULL)),
    ],
)
def test_other_requests_are_not_rejected_from_their_heads(url: str, version: FakeVersion) -> None:
    checker, observed = admission(version)
    assert checker.refusal(url, [], {}) is None
    assert observed == []


def test_a_client_without_a_key_gets_no_information_about_the_queue() -> None:
    checker, observed = admission(FakeVersion(FULL), KEY)
    assert checker.refusal("/v1/predict", [], {}) is None
    assert checker.refusal("/v1/predict", [(b"authorization", b"Bearer other")], {}) is None
    assert observed == []
    refusal = checker.refusal("/v1/predict", [(b"authorization", f"Bearer {KEY}".encode())], {})
    assert refusal is not None
    assert refusal.status == 429


def messages_for(path: str, version: FakeVersion, state: dict[str, Any]) -> list[Message]:
    """Return the messages of the middleware; the inner app sends "reached"."""
    sent: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "reached"})

    async def receive() -> Message:
        pytest.fail("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    middleware = AdmissionMiddleware(app, Models([version]))  # type: ignore[list-item]
    asyncio.run(middleware({"type": "http", "path": path, "state": state}, receive, send))
    return sent


@pytest.mark.parametrize(
    "path",
    ["/v1/predict", "/v2/models/topics/infer", "/v2/models/topics/versions/1/infer"],
)
def test_the_middleware_rejects_requests_that_were_not_checked_before(path: str) -> None:
    start, body = messages_for(path, FakeVersion(FULL), {})
    assert start["status"] == 429
    assert dict(start["headers"])[b"retry-after"] == b"3"
    assert json.loads(body["body"]) == {"error": f"{FULL}; send it again in 3 s"}


def test_the_middleware_forwards_admitted_requests() -> None:
    version, state = FakeVersion(None), dict[str, Any]()
    checker, _ = admission(version)
    assert checker.refusal("/v1/predict", [], state) is None
    version.error = FULL
    assert messages_for("/v1/predict", version, state) == [{"type": "reached"}]


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/v1/predict", FakeVersion(None)),
        ("/v2/models/other/infer", FakeVersion(FULL)),
        ("/v2/models/topics", FakeVersion(FULL)),
        ("/healthz", FakeVersion(FULL)),
        ("/v1/predict", FakeVersion(NotReadyError("stopping"))),
        ("/v1/predict", FakeVersion(FULL, ready=False)),
    ],
)
def test_the_middleware_forwards_other_requests(path: str, version: FakeVersion) -> None:
    assert messages_for(path, version, {}) == [{"type": "reached"}]


@contextmanager
def full(server) -> Iterator[socket.socket]:
    """Fill the queue of a server, and yield a connection to the server."""

    def fill() -> int:
        return httpx.post(f"{server.url}/v1/predict", json=MANY, timeout=300).status_code

    with ThreadPoolExecutor(4) as pool, connect(server) as opened:
        requests = [pool.submit(fill) for _ in range(4)]
        while httpx.post(f"{server.url}/v1/predict", content=BODY).status_code != 429:
            assert not all(request.done() for request in requests), "the queue was never full"
        yield opened
        server.process.kill()
        for request in requests:
            request.exception()


def answers(opened: socket.socket, count: int) -> list[tuple[int, dict[str, str], str]]:
    """Read this many responses: status, headers and error."""
    responses, data = [], b""
    while len(responses) < count:
        part = opened.recv(65536)
        assert part, data
        data += part
        while b"}" in data:
            end = data.index(b"}") + 1
            head, _, body = data[:end].partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            assert int(headers["content-length"]) == len(body)
            responses.append((int(first.split()[1]), headers, json.loads(body).get("error", "")))
            data = data[end:]
    return responses


def statuses(opened: socket.socket, sent: bytes, count: int = 1) -> list[int]:
    opened.sendall(sent)
    return [status for status, _, _ in answers(opened, count)]


def connect(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def test_a_full_queue_rejects_requests_of_every_form(slow_run, start_server) -> None:
    limits = "limits.body_s=1", "limits.texts=20000"
    server = start_server(slow_run, "queue.tokens=1000", *limits)
    with full(server) as opened:
        # Rejected before its body arrives; the body is skipped.
        opened.sendall(HEAD)
        ((status, headers, error),) = answers(opened, 1)
        assert status == 429
        assert error.startswith("the queue is full: ")
        assert headers["x-request-id"] == "mine"
        assert headers["content-type"] == "application/json"
        assert int(headers["retry-after"]) >= 1
        assert {"date", "server"} <= headers.keys()
        opened.sendall(BODY[:7])
        health = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
        assert statuses(opened, BODY[7:] + health) == [200]
        chunked = HEAD.replace(b"Content-Length: 19", b"Transfer-Encoding: chunked")
        assert statuses(opened, chunked + b"3\r\nabc\r\n0\r\n\r\n" + health, 2) == [429, 200]
        # By the app: Expect: 100-continue, pipelined requests, and a percent-encoded path.
        expect = HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
        assert statuses(opened, expect) == [429]
        assert statuses(opened, BODY + (HEAD + BODY) * 2, 2) == [429] * 2
        assert statuses(opened, HEAD.replace(b"predict", b"%70redict") + BODY) == [429]
        last = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert statuses(opened, last + BODY) == [429]
        assert opened.recv(1) == b""
        for stalled in (HEAD, chunked + b"zz\r\n"):  # one response, then the connection closes
            with connect(server) as other:
                assert statuses(other, stalled) == [429]
                assert other.recv(65536) == b""
        page = httpx.get(f"{server.url}/metrics").text
    prefix = 'pipework_requests_total{door="v1",model="topics",status="429"} '
    (line,) = [line for line in page.splitlines() if line.startswith(prefix)]
    assert float(line.split()[-1]) >= 9
