"""Limits of real connections: too many, too slow, too large, or not HTTP."""

import asyncio
import json
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from pipework.errors import TooBusyError
from pipework.serve.config import LimitSettings, QueueSettings
from pipework.serve.http import connection as connection_module
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.event_loop import TickShare
from pipework.serve.http.request_parser import PARSED_BYTES
from pipework.serve.models.registry import Models
from pipework.serve.scheduling.admission import ClientShareError
from tests.serve.servers import MemoryServer, MemoryTransport

LIMITS = (
    "limits.connections=3",
    "limits.header_s=0.5",
    "limits.body_s=1",
    "limits.idle_s=5",
    "limits.body_bytes=5000",
)
BODY = b'{"texts": ["goal"]}'
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: [::]\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def bounded(run, start_server):
    return start_server(run, *LIMITS)


@pytest.fixture(scope="module")
def crowded(run, start_server):
    """A server with a connection limit, but default timeouts."""
    return start_server(run, LIMITS[0])


@contextmanager
def connection(server) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        yield opened


def read_to_end(opened) -> bytes:
    parts = []
    while part := opened.recv(65536):
        parts.append(part)
    return b"".join(parts)


def answer(opened) -> tuple[int, str]:
    """Return the status and the error of the only response before the connection closes."""
    head, _, body = read_to_end(opened).partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


def send(server, data) -> tuple[int, str]:
    with connection(server) as opened:
        opened.sendall(data)
        return answer(opened)


def cut_off(opened, piece, *, pieces, pause_s=0.0) -> bool:
    """Send pieces; return whether the server closed the connection before the last piece."""
    try:
        for _ in range(pieces):
            opened.sendall(piece)
            time.sleep(pause_s)
    except ConnectionError:
        return True
    return False


def works(server) -> bool:
    response = httpx.post(f"{server.url}/v1/predict", content=BODY)
    return response.json()["predictions"][0]["label"] == "sport"


NOT_HTTP = {
    "bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    "words": b"hello\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\n\r\n",
    "a path of bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: [::]\r\n\r\n",
    "an authority": b"CONNECT a:80 HTTP/1.1\r\nHost: [::]\r\n\r\n",
    "no URL": b"GET http://[ HTTP/1.1\r\nHost: [::]\r\n\r\n",
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 9": b"GET / HTTP/9.9\r\nHost: [::]\r\n\r\n",
    "a negative length": b"POST /v1/predict HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    "a long length": b"POST /v1/predict HTTP/1.1\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n",
    "a chunk of no size": HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
    + b"zz\r\nhello\r\n",
    "a space in a name": b"GET / HTTP/1.1\r\nHo st: a\r\n\r\n",
    "a null": b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
}


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_data_that_is_not_http_is_answered_400(bounded, data):
    assert send(bounded, data) == (400, "expected HTTP/1.1, found something else")


def test_a_client_cannot_fill_the_log(run, start_server):
    server = start_server(run)
    broken = (
        *NOT_HTTP.values(),
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: [::]\r\n\r\n",
        (HEAD % 1).replace(b"Content-Length: 1", b"Transfer-Encoding: gzip, chunked")
        + b"0\r\n\r\n",
        HEAD % 1 + b"{",
        b"GET /docs/static/%s HTTP/1.1\r\nHost: [::]\r\n\r\n" % (b"a" * 5000),
        b"GET /%00%ff%0a HTTP/1.1\r\nHost: [::]\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::]\r\nX-Request-Id: \xff\r\nTraceparent: \xff\r\n\r\n",
        b"",
        b"POST /v1/predict HTTP/1.1\r\nHost: [::]\r\nContent-Le",
    )
    for data in broken:
        with connection(server) as opened:
            opened.sendall(data)
            opened.shutdown(socket.SHUT_WR)
            read_to_end(opened)
    for data in broken:
        with connection(server) as opened:
            opened.sendall(data)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    host, port = server.grpc.split(":")
    for data in broken:
        with socket.create_connection((host, int(port)), timeout=20) as opened:
            opened.sendall(data)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.finish().stderr == ""


def test_a_head_that_breaks_a_rule_is_rejected_and_its_body_is_no_request(bounded):
    inner = b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\n"
    head = (HEAD % len(inner)).replace(b"Host: [::]", b"X-Request-Id: mine")
    with connection(bounded) as opened:
        opened.sendall(head + inner)
        received = read_to_end(opened)
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 400 Bad Request")
    assert b"x-request-id: mine" in received
    assert b"expected one Host header, found none" in received


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/v2/health/live", b"/"])
def test_head_is_answered_without_a_body(bounded, path):
    close = b"Host: [::]\r\nConnection: close\r\n\r\n"
    with connection(bounded) as opened:
        opened.sendall(b"GET %s HTTP/1.1\r\n%s" % (path, close))
        expected = read_to_end(opened).partition(b"\r\n\r\n")[0]
    with connection(bounded) as opened:
        opened.sendall(b"HEAD %s HTTP/1.1\r\n%s" % (path, close))
        head, _, body = read_to_end(opened).partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")
    names, expected_names = (
        [line.partition(b":")[0] for line in part.split(b"\r\n")] for part in (head, expected)
    )
    assert names == expected_names
    assert [line for line in head.split(b"\r\n") if b"content-length" in line] == [
        line for line in expected.split(b"\r\n") if b"content-length" in line
    ]


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nHost:"])
def test_an_error_before_a_head_has_a_request_id(bounded, data):
    with connection(bounded) as opened:
        opened.sendall(data)
        assert b"\r\nx-request-id: " in read_to_end(opened)


def test_a_slow_head_is_cut_off(bounded):
    with connection(bounded) as opened:
        opened.sendall(b"GET /")
        assert cut_off(opened, b"a", pause_s=0.1, pieces=100)


def test_an_incomplete_head_is_answered_408(bounded):
    expected = (
        408,
        "the head of the request was not received within 0.5 s; send the whole request at once",
    )
    assert send(bounded, b"GET /healthz HTTP/1.1\r\nHost:") == expected


def test_a_silent_connection_is_closed_without_a_response(bounded):
    with connection(bounded) as opened:
        assert read_to_end(opened) == b""


def test_the_second_head_of_a_connection_has_the_same_timeout(bounded):
    with connection(bounded) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += opened.recv(65536)
        opened.sendall(b"\r\n")  # starts no request, but cancels the idle timer
        assert read_to_end(opened) == b""
    with connection(bounded) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\nGET /healthz HT")
        received = read_to_end(opened)
        assert b"HTTP/1.1 200 OK" in received
        assert b"HTTP/1.1 408 Request Timeout" in received


def test_a_too_long_head_is_rejected(bounded):
    hint = "send fewer or shorter headers, and texts in the body"
    expected = (431, f"expected a request head of at most 65536 bytes, found more; {hint}")
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(70))
    assert send(bounded, b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n" + lines + b"\r\n") == expected
    assert send(bounded, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: [::]\r\n\r\n") == expected


def test_an_endless_head_is_cut_off(bounded):
    with connection(bounded) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert cut_off(opened, b"a" * 65536, pieces=1000)


def test_endless_trailers_are_cut_off(bounded):
    with connection(bounded) as opened:
        head = HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
        opened.sendall(head + b"1\r\n{\r\n0\r\nX: ")
        assert cut_off(opened, b"a" * 65536, pieces=1000)


def test_a_too_large_body_is_rejected_and_cut_off(bounded):
    with connection(bounded) as opened:
        opened.sendall(HEAD % 10**9 + b"a" * 1000)
        assert b"HTTP/1.1 413" in opened.recv(65536)
        assert cut_off(opened, b"a" * 65536, pieces=1000)


def test_pipelined_requests_are_answered_in_order(bounded):
    close = b"Connection: close\r\n\r\n"
    first = HEAD % len(BODY) + BODY
    last = (HEAD % len(BODY)).replace(b"\r\n\r\n", b"\r\n" + close)
    with connection(bounded) as opened:
        opened.sendall(first + b"GET /nowhere HTTP/1.1\r\nHost: [::]\r\n\r\n" + last + BODY)
        received = read_to_end(opened)
    assert [part.split()[0] for part in received.split(b"HTTP/1.1 ")[1:]] == [
        b"200",
        b"404",
        b"200",
    ]


def test_pipelined_requests_of_one_packet_are_parsed_one_after_the_other():
    """Otherwise a packet of thousands of small requests would block the event loop."""
    sent = b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\n" * 5000

    async def send_all():
        server = MemoryServer(Models())
        opened, transport = server.connect()
        opened.data_received(sent)
        pending = [len(opened._exchanges)]  # noqa: SLF001
        while transport.written.count(b"HTTP/1.1 ") < 5000:
            transport.changed.clear()
            await transport.changed.wait()
            pending.append(len(opened._exchanges))  # noqa: SLF001
        return max(pending)

    assert asyncio.run(asyncio.wait_for(send_all(), 120)) < 8192 / 30


def test_data_after_an_error_are_not_kept():
    """The error waits for the response to an earlier request."""

    async def send_all():
        server = MemoryServer(Models())
        opened, transport = server.connect()
        opened.data_received(b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\nnot HTTP" + bytes(9000))
        kept = []
        for _ in range(3):
            kept.append(bool(opened._unparsed))  # noqa: SLF001
            opened.data_received(bytes(9000))
        await transport.until(lambda: transport.closing)
        return kept, transport.written

    kept, written = asyncio.run(asyncio.wait_for(send_all(), 60))
    assert kept == [False] * 3
    assert [part[:3] for part in written.split(b"HTTP/1.1 ")[1:3]] == [b"200", b"400"]


REJECTED = {
    "path": b"GET /%0a HTTP/1.1\r\nHost:\r\n\r\n",
    "key": b"GET /v2 HTTP/1.1\r\nHost:\r\n\r\n",
}


class PausedTransport(MemoryTransport):
    """Stores whether the server reads."""

    reads = True

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True


@pytest.mark.parametrize("request_", REJECTED.values(), ids=REJECTED.keys())
def test_requests_that_are_rejected_from_their_heads_are_answered_in_parts(request_):
    """Otherwise a packet of thousands of them would block the event loop."""
    count = 5000

    async def send_all():
        server = MemoryServer(Models(), ApiKeys(["a-key-of-0123456789"]))
        opened, _ = server.connect()
        transport = PausedTransport()
        opened.connection_made(transport)
        opened.data_received(request_ * count)
        answered, reads = [transport.written.count(b"HTTP/1.1 ")], [transport.reads]
        while answered[-1] < count:
            await asyncio.sleep(0)
            answered.append(transport.written.count(b"HTTP/1.1 "))
            reads.append(transport.reads)
        opened.data_received(b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n")
        await transport.until(lambda: b"HTTP/1.1 200" in transport.written)
        steps = [after - before for before, after in pairwise([0, *answered])]
        return max(steps), reads

    step, reads = asyncio.run(asyncio.wait_for(send_all(), 120))
    assert step <= PARSED_BYTES / len(request_) + 1
    assert reads == [False] * (len(reads) - 1) + [True]


def test_many_connections_are_parsed_in_turn_and_new_requests_come_first():
    """A few connections with thousands of requests would block the event loop together."""
    packet, count = REJECTED["path"] * 1000, 8

    async def send_all():
        server = MemoryServer(Models())
        server.factory.parsing = TickShare(seconds=0)  # one part in a tick
        opened = [server.connect() for _ in range(count)]
        for connection, _ in opened:
            connection.data_received(packet)
        steps = []
        while any(transport.written.count(b" 404 ") < 100 for _, transport in opened):
            before = sum(transport.written.count(b" 404 ") for _, transport in opened)
            await asyncio.sleep(0)
            steps.append(sum(t.written.count(b" 404 ") for _, t in opened) - before)
        (health,) = await server.exchange(b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n")
        rest = [1000 - transport.written.count(b" 404 ") for _, transport in opened]
        return max(steps), health[0], min(rest)

    step, status, rest = asyncio.run(asyncio.wait_for(send_all(), 120))
    assert step <= 2 * (PARSED_BYTES / len(REJECTED["path"]) + 1)
    assert status == 200
    assert rest > 500  # the health check did not wait for them


@pytest.mark.parametrize(
    ("error", "keys", "at_once"),
    [(ClientShareError, (), 1), (ClientShareError, ("key",), 2), (TooBusyError, (), 2)],
)
def test_a_client_that_has_used_its_share_is_read_later(monkeypatch, error, keys, at_once):
    """A connection with keys may be that of a proxy with other clients."""
    head = (HEAD % 5).replace(b"Host: [::]", b"Host: [::]\r\nX-API-Key: key")

    async def refused(delay_s, *, stops):
        monkeypatch.setattr(connection_module, "DELAY_S", delay_s)
        server = MemoryServer(Models(), ApiKeys(keys))
        monkeypatch.setattr(server.handler, "_admit", Mock(side_effect=error("used")))
        opened, transport = server.connect()
        for part in (head, b"11111", head + b"11111"):
            opened.data_received(part)
            await asyncio.sleep(0.01)
        answers = transport.written.count(b" 429 ")
        if stops:
            opened.shutdown()
        await transport.until_answered(2)
        return answers

    assert asyncio.run(refused(1000, stops=True)) == at_once
    asyncio.run(refused(0.05, stops=False))


def test_timeouts_do_not_run_while_the_next_request_is_delayed(monkeypatch):
    monkeypatch.setattr(connection_module, "DELAY_S", 0.6)

    async def refused():
        server = MemoryServer(Models(), limits=LimitSettings(idle_s=0.1, header_s=0.1))
        monkeypatch.setattr(server.handler, "_admit", Mock(side_effect=ClientShareError("used")))
        opened, transport = server.connect()
        opened.data_received(HEAD % 5 + b"11111" + HEAD[:9])  # and a part of the next head
        await asyncio.sleep(0)
        opened.data_received(HEAD[9:] % 5 + b"11111")
        return await transport.until_answered(2)

    assert [status for status, _, _ in asyncio.run(refused())] == [429, 429]


def test_a_connection_that_is_lost_is_not_parsed_any_more():
    async def lose():
        server = MemoryServer(Models())
        server.factory.parsing = TickShare(seconds=0)  # one part in a tick
        opened = [server.connect() for _ in range(4)]
        for connection, _ in opened:
            connection.data_received(REJECTED["path"] * 1000)
        for connection, _ in opened:
            connection.connection_lost(None)
        for _ in range(20):
            await asyncio.sleep(0)
        parsing = server.factory.parsing
        return len(parsing._new) + len(parsing._repeated)  # noqa: SLF001

    assert asyncio.run(lose()) == 0


def test_too_many_headers_are_rejected_before_the_end_of_the_head(bounded):
    hint = "send fewer or shorter headers, and texts in the body"
    expected = (431, f"expected a request head of at most 1000 headers, found more; {hint}")
    assert send(bounded, b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n" + b"a:\r\n" * 1300) == expected
    allowed = b"GET /healthz HTTP/1.1\r\nHost: [::]\r\nConnection: close\r\n" + b"a:\r\n" * 998
    with connection(bounded) as opened:
        opened.sendall(allowed + b"\r\n")
        assert read_to_end(opened).startswith(b"HTTP/1.1 200 OK")


def test_a_response_is_one_packet(bounded):
    with connection(bounded) as opened:
        for _ in range(20):
            opened.sendall(HEAD % len(BODY) + BODY)
            assert opened.recv(65536).endswith(b"}]}")


def test_a_client_that_does_not_read_is_cut_off(bounded):
    path = "/docs/static/swagger-ui-bundle.js"
    size = len(httpx.get(bounded.url + path).content)
    count = 20_000_000 // size  # more than the socket buffers of both sides
    requests = f"GET {path} HTTP/1.1\r\nHost: [::]\r\n\r\n".encode() * count
    with connection(bounded) as opened:
        opened.sendall(requests + b"GET / HTTP/1.0\r\n\r\n")  # the last closes the connection
        assert len(read_to_end(opened)) > size * count
    with connection(bounded) as opened:
        opened.sendall(requests)
        time.sleep(3)
        received = 0
        with suppress(ConnectionError):
            received = len(read_to_end(opened))
        assert received < size * count


class UnreadTransport(MemoryTransport):
    """A connection whose client reads nothing. It closes only after all data has been read."""

    def __init__(self):
        super().__init__()
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self):
        return 190

    def abort(self):
        self.aborted.set()


def test_a_client_that_does_not_read_its_error_is_cut_off():
    async def wait():
        server = MemoryServer(Models(), limits=LimitSettings(header_s=0.05, body_s=0.1))
        opened, _ = server.connect()
        opened.connection_made(transport := UnreadTransport())
        await transport.aborted.wait()
        assert transport.closing

    asyncio.run(asyncio.wait_for(wait(), 60))


@contextmanager
def busy(server) -> Iterator[socket.socket]:
    """A connection with an incomplete request."""
    with connection(server) as opened:
        opened.sendall(HEAD % len(BODY) + BODY[:-1])
        time.sleep(0.1)  # until the server has read it
        yield opened


def test_a_connection_above_the_limit_gets_503_except_for_health_checks(crowded):
    with busy(crowded) as first, busy(crowded), busy(crowded):
        rejected = httpx.post(f"{crowded.url}/v1/predict", content=BODY)
        assert rejected.status_code == 503
        assert rejected.json() == {"error": "all 3 allowed connections are in use; try again later"}
        assert rejected.headers["connection"] == "close"
        assert httpx.get(f"{crowded.url}/healthz").status_code == 200
        # Established connections still work.
        first.sendall(BODY[-1:])
        assert first.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert works(crowded)


def test_an_idle_connection_is_closed_for_a_new_one(crowded):
    with connection(crowded) as silent, connection(crowded) as half, ExitStack() as opened:
        half.sendall(b"GET /healthz HTTP/1.1\r\n")
        keeping = opened.enter_context(httpx.Client(base_url=crowded.url))
        for path in ("/healthz", "/healthz"):
            assert keeping.get(path).status_code == 200
        with busy(crowded) as request:  # the fourth
            assert silent.recv(1) == b""
            # The fifth closes the one with half of a head, which has been idle for longer.
            assert httpx.post(f"{crowded.url}/v1/predict", content=BODY).status_code == 200
            with suppress(ConnectionError):
                assert half.recv(1) == b""
            assert keeping.get("/healthz").status_code == 200
            request.sendall(BODY[-1:])
            assert request.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("path", ["/openapi.json", "/docs/static/swagger-ui-bundle.js"])
def test_a_connection_is_idle_when_a_slow_client_has_read_its_response(path):
    """The sizes are below and above 64 KiB, above which asyncio pauses a protocol by default."""

    async def ask():
        server = MemoryServer(Models())
        client, accepted = socket.socketpair()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, opened = await loop.connect_accepted_socket(server.factory, accepted)
        await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nHost: [::]\r\n\r\n".encode())
        received = await loop.sock_recv(client, 1000)
        idle_before = opened in server.factory.idle
        size = int(received.partition(b"content-length: ")[2].split()[0])
        left = size + received.index(b"\r\n\r\n") + 4 - len(received)
        while left:
            left -= len(await loop.sock_recv(client, 65536))
        await asyncio.sleep(0.1)
        idle_after = opened in server.factory.idle
        client.close()
        transport.abort()
        await asyncio.sleep(0)
        return size, idle_before, idle_after

    size, *idle = asyncio.run(asyncio.wait_for(ask(), 60))
    assert size > 10_000
    assert idle == [False, True]


def test_far_too_many_silent_connections_do_not_matter(crowded):
    with ExitStack() as opened:
        for _ in range(50):
            opened.enter_context(connection(crowded))
        assert works(crowded)
        assert httpx.get(f"{crowded.url}/healthz").status_code == 200
        assert len(list(Path(f"/proc/{crowded.process.pid}/fd").iterdir())) < 50


def test_the_server_still_works_afterwards(bounded):
    assert works(bounded)


def test_the_queue_limit_is_below_the_connection_limit():
    assert LimitSettings().connections > QueueSettings().requests
