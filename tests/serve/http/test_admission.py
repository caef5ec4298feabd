"""A full queue refuses from the head of a request, and the connection goes on as before."""

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
from pipework.serve.http.admission import Admission, RefuseBusy
from pipework.serve.http.auth import ApiKeys
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Watch
from pipework.serve.request.context import Observed

FULL = TooBusyError("the queue is full: 9 requests, 900 tokens wait", 3)
KEY = "first-key-0123456789"
MANY = {"texts": ["#" * 32] * 20_000}  # much to compute in few bytes
ASKED = b'{"texts": ["goal"]}'
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\nContent-Length: 19\r\n\r\n"


@dataclass
class Version:
    """A version whose queue is full, or that has another error."""

    error: PipeError | None
    ready: bool = True
    name: str = "topics"
    version: str = "1"

    def check_room(self) -> None:
        if self.error:
            raise self.error


def admission(version: Version, *keys: str) -> tuple[Admission, list[Observed]]:
    models = Models([version])  # type: ignore[list-item]
    watch, seen = Watch(models), []
    watch.finish = seen.append  # type: ignore[method-assign]
    return Admission(models, ApiKeys(keys), watch), seen


@pytest.mark.parametrize(
    ("url", "door"),
    [
        ("/v1/predict", "v1"),
        ("/v2/models/topics/infer", "v2"),
        ("/v2/models/topics/versions/1/infer", "v2"),
    ],
)
def test_a_full_queue_refuses_and_that_is_seen(url: str, door: str) -> None:
    one, seen = admission(Version(FULL))
    refused = one.refusal(url, [(b"host", b"a"), (b"x-request-id", b"mine")], {})
    assert refused is not None
    assert refused.status == 429
    assert dict(refused.headers) == {b"Retry-After": b"3", b"x-request-id": b"mine"}
    assert json.loads(refused.body) == {"error": f"{FULL}; send it again in 3 s"}
    (observed,) = seen
    assert (observed.door, observed.id, observed.status) == (door, "mine", "429")
    assert (observed.model, observed.version) == ("topics", "1")


@pytest.mark.parametrize(
    ("url", "version"),
    [
        ("/v1/predict", Version(None)),
        ("/v1/predict", Version(NotReadyError("stopping"))),
        ("/v1/predict", Version(FULL, ready=False)),
        ("/v1/predict?a=b", Version(FULL)),
        ("/v2/models/other/infer", Version(FULL)),
        ("/v2/models/topics/versions/2/infer", Version(FULL)),
        ("/v2/models/topics", Version(FULL)),
        ("/v2/models/%74opics/infer", Version(FULL)),
        ("/healthz", Version(FULL)),
    ],
)
def test_all_else_is_not_refused_from_its_head(url: str, version: Version) -> None:
    one, seen = admission(version)
    assert one.refusal(url, [], {}) is None
    assert seen == []


def test_who_has_no_key_does_not_learn_that_the_queue_is_full() -> None:
    one, seen = admission(Version(FULL), KEY)
    assert one.refusal("/v1/predict", [], {}) is None
    assert one.refusal("/v1/predict", [(b"authorization", b"Bearer other")], {}) is None
    assert seen == []
    refused = one.refusal("/v1/predict", [(b"authorization", f"Bearer {KEY}".encode())], {})
    assert refused is not None
    assert refused.status == 429


def ask(path: str, version: Version, state: dict[str, Any]) -> list[Message]:
    """Return what the middleware sends; the app behind sends that it was reached."""
    sent: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "reached"})

    async def receive() -> Message:
        pytest.fail("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    door = RefuseBusy(app, Models([version]))  # type: ignore[list-item]
    asyncio.run(door({"type": "http", "path": path, "state": state}, receive, send))
    return sent


@pytest.mark.parametrize(
    "path",
    ["/v1/predict", "/v2/models/topics/infer", "/v2/models/topics/versions/1/infer"],
)
def test_the_app_refuses_what_was_not_looked_at(path: str) -> None:
    start, body = ask(path, Version(FULL), {})
    assert start["status"] == 429
    assert dict(start["headers"])[b"retry-after"] == b"3"
    assert json.loads(body["body"]) == {"error": f"{FULL}; send it again in 3 s"}


def test_who_was_let_in_is_not_refused_by_the_app() -> None:
    version, state = Version(None), dict[str, Any]()
    one, _ = admission(version)
    assert one.refusal("/v1/predict", [], state) is None
    version.error = FULL
    assert ask("/v1/predict", version, state) == [{"type": "reached"}]


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/v1/predict", Version(None)),
        ("/v2/models/other/infer", Version(FULL)),
        ("/v2/models/topics", Version(FULL)),
        ("/healthz", Version(FULL)),
        ("/v1/predict", Version(NotReadyError("stopping"))),
        ("/v1/predict", Version(FULL, ready=False)),
    ],
)
def test_all_else_is_passed_on(path: str, version: Version) -> None:
    assert ask(path, version, {}) == [{"type": "reached"}]


@contextmanager
def full(server) -> Iterator[socket.socket]:
    """Yield a connection to a server whose queue is full, and stays so for a while."""

    def fill() -> int:
        return httpx.post(f"{server.url}/v1/predict", json=MANY, timeout=300).status_code

    with ThreadPoolExecutor(4) as pool, again(server) as opened:
        asked = [pool.submit(fill) for _ in range(4)]
        while httpx.post(f"{server.url}/v1/predict", content=ASKED).status_code != 429:
            assert not all(one.done() for one in asked), "the queue was never full"
        yield opened
        server.process.kill()
        for one in asked:
            one.exception()


def answers(opened: socket.socket, count: int) -> list[tuple[int, dict[str, str], str]]:
    """Read so many answers: status, headers and error."""
    found, data = [], b""
    while len(found) < count:
        part = opened.recv(65536)
        assert part, data
        data += part
        while b"}" in data:
            end = data.index(b"}") + 1
            head, _, body = data[:end].partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            assert int(headers["content-length"]) == len(body)
            found.append((int(first.split()[1]), headers, json.loads(body).get("error", "")))
            data = data[end:]
    return found


def statuses(opened: socket.socket, sent: bytes, count: int = 1) -> list[int]:
    opened.sendall(sent)
    return [one[0] for one in answers(opened, count)]


def again(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def test_a_full_queue_refuses_over_any_connection(slow_run, start_server) -> None:
    limits = "limits.body_s=1", "limits.texts=20000"
    server = start_server(slow_run, "queue.tokens=1000", *limits)
    with full(server) as opened:
        # Refused before its body has come, which is then read over.
        opened.sendall(HEAD)
        ((status, headers, error),) = answers(opened, 1)
        assert status == 429
        assert error.startswith("the queue is full: ")
        assert headers["x-request-id"] == "mine"
        assert headers["content-type"] == "application/json"
        assert int(headers["retry-after"]) >= 1
        assert {"date", "server"} <= headers.keys()
        opened.sendall(ASKED[:7])
        health = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
        assert statuses(opened, ASKED[7:] + health) == [200]
        chunked = HEAD.replace(b"Content-Length: 19", b"Transfer-Encoding: chunked")
        assert statuses(opened, chunked + b"3\r\nabc\r\n0\r\n\r\n" + health, 2) == [429, 200]
        # Before its body is asked for, behind one another, and with an encoded path: by the app.
        wish = HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
        assert statuses(opened, wish) == [429]
        assert statuses(opened, ASKED + (HEAD + ASKED) * 2, 2) == [429] * 2
        assert statuses(opened, HEAD.replace(b"predict", b"%70redict") + ASKED) == [429]
        last = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert statuses(opened, last + ASKED) == [429]
        assert opened.recv(1) == b""
        for stalled in (HEAD, chunked + b"zz\r\n"):  # one answer, and then the end
            with again(server) as other:
                assert statuses(other, stalled) == [429]
                assert other.recv(65536) == b""
        page = httpx.get(f"{server.url}/metrics").text
    counted = 'pipework_requests_total{door="v1",model="topics",status="429"} '
    (line,) = [one for one in page.splitlines() if one.startswith(counted)]
    assert float(line.split()[-1]) >= 9
