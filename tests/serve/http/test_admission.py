"""Requests are rejected from their heads when the queue is full; the connection stays usable."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from pipework.client import Client as PipeClient
from pipework.errors import NotReadyError, PipeError, TooBusyError
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.exchange import Exchange
from pipework.serve.http.request_parser import RequestHead
from pipework.serve.models.leases import VersionLeases
from pipework.serve.models.registry import Models
from pipework.serve.request.context import RequestOptions
from tests.serve.servers import MemoryServer

FULL = TooBusyError("the queue is full: 9 requests, 900 tokens wait", 3)
KEY = "first-key-0123456789"
MANY = {"texts": ["#" * 32] * 20_000}  # few bytes, but long to compute
BODY = b'{"texts": ["goal"]}'
GREEDY_TEXTS = {"texts": ["rain sun wind goal"] * 4}
HEAD = (
    b"POST /v1/predict HTTP/1.1\r\nHost: [::]\r\nX-Request-Id: mine\r\nContent-Length: 19\r\n\r\n"
)


@dataclass
class FakeVersion:
    """A model version with an error, such as a full queue."""

    error: PipeError | None
    ready: bool = True
    name: str = "topics"
    version: str = "1"

    @property
    def scheduler(self) -> "FakeVersion":
        return self

    def check_room(self, _: RequestOptions) -> None:
        if self.error:
            raise self.error


def begun(
    version: FakeVersion, url: str, *headers: tuple[bytes, bytes], keys: Sequence[str] = ()
) -> Exchange:
    """Return the exchange after the head of a POST request."""
    server = MemoryServer(Models([version]), ApiKeys(keys))  # type: ignore[list-item]
    head = RequestHead(
        method="POST", path=url, headers=list(headers), keep_alive=True, fields=dict(headers)
    )
    return server.handler.begin(head)


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("/v1/predict", "v1"),
        ("/v2/models/topics/infer", "v2"),
        ("/v2/models/topics/versions/1/infer", "v2"),
    ],
)
def test_a_request_to_a_full_queue_is_rejected_from_its_head(url: str, endpoint: str) -> None:
    exchange = begun(FakeVersion(FULL), url, (b"x-request-id", b"mine"))
    response = exchange.response
    assert response is not None
    assert (response.status_code, exchange.closes) == (429, False)
    assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("3", "mine")
    assert json.loads(bytes(response.body)) == {"error": f"{FULL}; send it again in 3 s"}
    context = exchange.context
    assert (context.endpoint, context.id, context.status) == (endpoint, "mine", "429")
    assert (context.model, context.version) == ("topics", "1")


@pytest.mark.parametrize(
    ("url", "version", "status"),
    [
        ("/v1/predict", FakeVersion(None), None),
        ("/v1/predict", FakeVersion(NotReadyError("stopping")), 503),
        ("/v2/models/other/infer", FakeVersion(FULL), 404),
        ("/v2/models/topics/versions/2/infer", FakeVersion(FULL), 404),
        ("/v2/models/topics", FakeVersion(FULL), None),
        ("/v2/repository/index", FakeVersion(FULL), None),
    ],
)
def test_other_heads_are_accepted_or_rejected_with_their_error(
    url: str, version: FakeVersion, status: int | None
) -> None:
    response = begun(version, url).response
    assert (response and response.status_code) == status


def test_a_model_is_looked_up_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    version = FakeVersion(None)
    monkeypatch.setattr(version, "check_room", lambda _: calls.append("checked"))
    acquire = VersionLeases.acquire
    monkeypatch.setattr(
        VersionLeases, "acquire", lambda *args: calls.append("found") or acquire(*args)
    )
    for url in ("/v1/predict", "/v2/models/topics/infer"):
        exchange = begun(version, url)
        assert exchange.model.acquire("topics") is version
        assert exchange.model.acquire("topics", "1") is version
        assert calls == ["found", "checked"]
        calls.clear()


def test_a_client_without_a_key_gets_no_information_about_the_queue() -> None:
    for headers in ((), ((b"authorization", b"Bearer other"),)):
        rejected = begun(FakeVersion(FULL), "/v1/predict", *headers, keys=[KEY]).response
        assert rejected is not None
        assert rejected.status_code == 401
    key = (b"authorization", f"Bearer {KEY}".encode())
    rejected = begun(FakeVersion(FULL), "/v1/predict", key, keys=[KEY]).response
    assert rejected is not None
    assert rejected.status_code == 429


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
        health = b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\n"
        assert statuses(opened, BODY[7:] + health) == [200]
        chunked = HEAD.replace(b"Content-Length: 19", b"Transfer-Encoding: chunked")
        assert statuses(opened, chunked + b"3\r\nabc\r\n0\r\n\r\n" + health, 2) == [429, 200]
        # Expect: 100-continue, pipelined requests, and a percent-encoded path.
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


@contextmanager
def greedy_client(server, kind: str) -> Iterator[Callable[[], int]]:
    """Yield a function that sends a request as a greedy client, and returns its status."""
    headers = {"X-Priority": "bulk"} if kind == "bulk" else {}
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with (
        httpx.Client(transport=transport, headers=headers, timeout=60) as http,
        PipeClient(f"grpc://{server.grpc}", key="greedy") as grpc,
    ):

        def send_http() -> int:
            return http.post(f"{server.url}/v1/predict", json=GREEDY_TEXTS).status_code

        def send_grpc() -> int:
            try:
                grpc.predict(GREEDY_TEXTS["texts"])
            except TooBusyError:
                return 429
            return 200

        yield send_grpc if kind == "key" else send_http


@pytest.mark.parametrize("kind", ["address", "bulk", "key"])
def test_a_greedy_client_does_not_lock_another_client_out(slow_run, start_server, kind) -> None:
    keys = {"PIPEWORK_API_KEYS": "greedy,polite"} if kind == "key" else {}
    server = start_server(slow_run, "queue.requests=16", **keys)
    done = threading.Event()
    statuses = Counter[int]()

    def repeat(send: Callable[[], int]) -> None:
        while not done.is_set():
            status = send()
            statuses[status] += 1
            done.wait(0.01 if status == 429 else 0)

    with (
        greedy_client(server, kind) as send,
        ThreadPoolExecutor(32) as pool,
        httpx.Client(base_url=server.url, headers={"X-API-Key": "polite"}) as polite,
    ):
        for _ in range(32):
            pool.submit(repeat, send)
        try:
            while not statuses[429]:
                assert not done.wait(0.01)
            answers = [polite.post("/v1/predict", content=BODY, timeout=60) for _ in range(30)]
        finally:
            done.set()
    assert [answer.status_code for answer in answers] == [200] * 30
    assert set(statuses) == {200, 429}
    assert server.stop() == 0
