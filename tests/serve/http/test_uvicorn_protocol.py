"""What comes over a real socket: too many, too slow, too long, or no HTTP."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from pipework.serve.config import LimitSettings, QueueSettings
from pipework.serve.http.admission import Admission
from pipework.serve.http.auth import ApiKeys
from pipework.serve.http.uvicorn_protocol import bounded_protocol
from pipework.serve.models.registry import Models

LIMITS = (
    "limits.connections=3",
    "limits.header_s=0.5",
    "limits.body_s=1",
    "limits.body_bytes=5000",
)
ASKED = b'{"texts": ["goal"]}'
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def bounded(run, start_server):
    return start_server(run, *LIMITS)


@pytest.fixture(scope="module")
def crowded(run, start_server):
    """One that closes no silent connection while others are opened."""
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
    """Return the status and the error of the one answer that comes before the end."""
    head, _, body = read_to_end(opened).partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


def sent(server, data) -> tuple[int, str]:
    with connection(server) as opened:
        opened.sendall(data)
        return answer(opened)


def cut_off(opened, piece, *, pieces, pause_s=0.0) -> bool:
    """Send pieces; return whether the server closed the connection before the last."""
    try:
        for _ in range(pieces):
            opened.sendall(piece)
            time.sleep(pause_s)
    except ConnectionError:
        return True
    return False


def is_well(server) -> bool:
    found = httpx.post(f"{server.url}/v1/predict", content=ASKED)
    return found.json()["predictions"][0]["label"] == "sport"


NO_HTTP = {
    "bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
    "words": b"hello\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\n\r\n",
    "a path of bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "an authority": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no URL": b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n",
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 9": b"GET / HTTP/9.9\r\n\r\n",
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


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP.keys())
def test_what_is_no_http_is_told_so_in_our_form(bounded, data):
    assert sent(bounded, data) == (400, "expected HTTP/1.1, found something else")


def test_a_head_of_a_byte_at_a_time_is_cut_off(bounded):
    with connection(bounded) as opened:
        opened.sendall(b"GET /")
        assert cut_off(opened, b"a", pause_s=0.1, pieces=100)


def test_half_a_head_is_answered_408(bounded):
    said = (408, "the head of the request did not come within 0.5 s")
    assert sent(bounded, b"GET /healthz HTTP/1.1\r\nHost:") == said


def test_half_a_body_is_answered_408(bounded):
    said = (408, "the body of the request did not come within 1 s")
    assert sent(bounded, HEAD % len(ASKED) + ASKED[:-1]) == said


def test_who_says_nothing_is_closed_without_a_word(bounded):
    with connection(bounded) as opened:
        assert read_to_end(opened) == b""


def test_a_second_head_is_timed_as_the_first(bounded):
    with connection(bounded) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n\r\n")
        found = b""
        while not found.endswith(b"}"):
            found += opened.recv(65536)
        opened.sendall(b"\r\n")  # it begins no request, and ends the wait of an idle connection
        assert read_to_end(opened) == b""
    with connection(bounded) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HT")
        found = read_to_end(opened)
        assert b"HTTP/1.1 200 OK" in found
        assert b"HTTP/1.1 408 Request Timeout" in found


def test_a_long_head_is_refused(bounded):
    said = (431, "expected a head of at most 65536 bytes, found more")
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(70))
    assert sent(bounded, b"GET /healthz HTTP/1.1\r\n" + lines + b"\r\n") == said
    assert sent(bounded, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n") == said


def test_an_endless_head_is_cut_off(bounded):
    with connection(bounded) as opened:
        opened.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert cut_off(opened, b"a" * 65536, pieces=1000)


def test_endless_trailers_are_cut_off(bounded):
    with connection(bounded) as opened:
        head = HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
        opened.sendall(head + b"1\r\n{\r\n0\r\nX: ")
        assert cut_off(opened, b"a" * 65536, pieces=1000)


def test_a_body_too_large_is_refused_and_then_cut_off(bounded):
    with connection(bounded) as opened:
        opened.sendall(HEAD % 10**9 + b"a" * 1000)
        assert b"HTTP/1.1 413" in opened.recv(65536)
        assert cut_off(opened, b"a" * 65536, pieces=1000)


def test_requests_behind_one_another_are_answered_in_their_order(bounded):
    close = b"Connection: close\r\n\r\n"
    one = HEAD % len(ASKED) + ASKED
    last = (HEAD % len(ASKED)).replace(b"\r\n\r\n", b"\r\n" + close)
    with connection(bounded) as opened:
        opened.sendall(one + b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n" + last + ASKED)
        found = read_to_end(opened)
    assert [part.split()[0] for part in found.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_a_wish_for_http_2_is_passed_over(bounded):
    wish = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    )
    head = (HEAD % len(ASKED)).replace(b"\r\n\r\n", b"\r\n" + wish)
    with connection(bounded) as opened:
        for _ in range(2):
            opened.sendall(head + ASKED)
            found = b""
            while not found.endswith(b"}]}"):
                part = opened.recv(65536)
                assert part
                found += part
            assert found.startswith(b"HTTP/1.1 200 OK")


def test_an_answer_comes_in_one_piece(bounded):
    with connection(bounded) as opened:
        for _ in range(20):
            opened.sendall(HEAD % len(ASKED) + ASKED)
            assert opened.recv(65536).endswith(b"}]}")


def test_who_does_not_read_the_answers_is_cut_off(bounded):
    path = "/docs/static/swagger-ui-bundle.js"
    one = len(httpx.get(bounded.url + path).content)
    count = 20_000_000 // one  # more than the buffers of both sides hold
    asked = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * count
    with connection(bounded) as opened:
        opened.sendall(asked + b"GET / HTTP/1.0\r\n\r\n")  # the last asks to close
        assert len(read_to_end(opened)) > one * count
    with connection(bounded) as opened:
        opened.sendall(asked)
        time.sleep(3)
        found = 0
        with suppress(ConnectionError):
            found = len(read_to_end(opened))
        assert found < one * count


class Stuck(asyncio.Transport):
    """A connection whose client reads nothing, and which is closed when all has been read."""

    def __init__(self):
        super().__init__()
        self.closing, self.aborted = False, asyncio.Event()

    def write(self, data):
        pass

    def get_write_buffer_size(self):
        return 190

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.aborted.set()


def test_a_silent_client_that_has_not_read_its_refusal_is_cut_off():
    async def wait():
        limits = LimitSettings(header_s=0.05, body_s=0.1)
        protocol = bounded_protocol(limits, Admission(Models(), ApiKeys(), None), None)
        config = uvicorn.Config(None, http=protocol, ws="none", lifespan="off", log_config=None)
        config.load()
        opened = protocol(config=config, server_state=ServerState(), app_state={})
        opened.connection_made(stuck := Stuck())
        await stuck.aborted.wait()
        assert stuck.closing

    asyncio.run(asyncio.wait_for(wait(), 60))


def test_one_connection_too_many_is_told_so_and_may_ask_for_the_health(crowded):
    with httpx.Client(base_url=crowded.url) as first, connection(crowded), connection(crowded):
        assert first.get("/healthz").status_code == 200
        refused = httpx.post(f"{crowded.url}/v1/predict", content=ASKED)
        assert refused.status_code == 503
        assert refused.json() == {"error": "3 connections are open, which is the limit; try again"}
        assert refused.headers["connection"] == "close"
        assert httpx.get(f"{crowded.url}/healthz").status_code == 200
        # Those who were there before are served on.
        assert first.post("/v1/predict", content=ASKED).status_code == 200
    assert is_well(crowded)


def test_far_too_many_connections_are_closed_at_once(crowded):
    with ExitStack() as opened:
        *_, last = [opened.enter_context(connection(crowded)) for _ in range(20)]
        with suppress(ConnectionError):
            last.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert last.recv(1) == b""
    assert is_well(crowded)


def test_the_server_is_well_after_all_that(bounded):
    assert is_well(bounded)


def test_a_process_may_open_the_files_that_its_connections_need():
    program = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 2000))\n"
        "from pipework.serve.http.uvicorn_protocol import allow_files\n"
        "allow_files(600); print(r.getrlimit(r.RLIMIT_NOFILE))\n"
        "allow_files(4096); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.split("\n")[:2] == ["(1712, 2000)", "(2000, 2000)"]


def test_a_full_queue_is_met_before_the_limit_of_connections():
    assert LimitSettings().connections > QueueSettings().requests
