"""A full queue refuses from the head of a request, and the connection goes on as before."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from pipework.errors import NotReadyError, PipeError, TooBusyError
from serve.admission import Admission
from serve.keys import ApiKeys
from serve.models import Models
from serve.observed import Observed
from serve.watch import Watch

FULL = TooBusyError("the queue is full: 9 requests, 900 tokens wait", 3)
KEY = "first-key-0123456789"
MANY = {"texts": ["rain sun wind goal team match bank rate stock " * 8] * 900}
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
        (b"/v1/predict", "v1"),
        (b"/v2/models/topics/infer", "v2"),
        (b"/v2/models/topics/versions/1/infer", "v2"),
    ],
)
def test_a_full_queue_refuses_and_that_is_seen(url: bytes, door: str) -> None:
    one, seen = admission(Version(FULL))
    refused = one.refusal(url, [(b"host", b"a"), (b"x-request-id", b"mine")])
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
        (b"/v1/predict", Version(None)),
        (b"/v1/predict", Version(NotReadyError("stopping"))),
        (b"/v1/predict", Version(FULL, ready=False)),
        (b"/v1/predict?a=b", Version(FULL)),
        (b"/v2/models/other/infer", Version(FULL)),
        (b"/v2/models/topics/versions/2/infer", Version(FULL)),
        (b"/v2/models/topics", Version(FULL)),
        (b"/v2/models/%74opics/infer", Version(FULL)),
        (b"/healthz", Version(FULL)),
    ],
)
def test_all_else_is_for_the_app(url: bytes, version: Version) -> None:
    one, seen = admission(version)
    assert one.refusal(url, []) is None
    assert seen == []


def test_who_has_no_key_does_not_learn_that_the_queue_is_full() -> None:
    one, seen = admission(Version(FULL), KEY)
    assert one.refusal(b"/v1/predict", []) is None
    assert one.refusal(b"/v1/predict", [(b"authorization", b"Bearer other")]) is None
    assert seen == []
    refused = one.refusal(b"/v1/predict", [(b"authorization", f"Bearer {KEY}".encode())])
    assert refused is not None
    assert refused.status == 429


@contextmanager
def full(server) -> Iterator[socket.socket]:
    """Yield a connection to a server whose queue is full, and stays so for a while."""
    host, port = server.url.removeprefix("http://").split(":")

    def ask() -> int:
        return httpx.post(f"{server.url}/v1/predict", json=MANY, timeout=300).status_code

    with ThreadPoolExecutor(4) as pool, socket.create_connection((host, int(port)), 60) as opened:
        asked = [pool.submit(ask) for _ in range(4)]
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


def test_a_connection_is_used_on_after_a_refusal(slow_run, start_server) -> None:
    server = start_server(slow_run, "queue.tokens=1000")
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
        opened.sendall(ASKED[7:] + b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [one[0] for one in answers(opened, 1)] == [200]
        # Behind one another; the last wishes to close, which the app hears.
        last = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        opened.sendall((HEAD + ASKED) * 2 + last + ASKED)
        assert [one[0] for one in answers(opened, 3)] == [429] * 3
        assert opened.recv(1) == b""
        page = httpx.get(f"{server.url}/metrics").text
    counted = 'pipework_requests_total{door="v1",model="topics",status="429"} '
    (line,) = [one for one in page.splitlines() if one.startswith(counted)]
    assert float(line.split()[-1]) >= 4
