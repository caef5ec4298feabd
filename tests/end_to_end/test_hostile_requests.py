"""Hostile requests: health checks stay responsive, and memory is limited and returned.

Each request has at most 64 KiB on the wire. PIPEWORK_HOSTILE_REPORT names a file for the measured
values, one JSON object per line.
"""

import gzip
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2 as proto

from tests.end_to_end.http2 import (
    ACK,
    END_STREAM,
    INFER,
    PREFACE,
    SETTINGS,
    Http2Connection,
    call_headers,
    frame,
    message,
    table_entry,
)
from tests.serve.conftest import RUNNER, build_run

WIRE_BYTES = 64 * 2**10
BODY_BYTES = 4 * 2**20 - 1000  # of a decompressed body: just below the limit
MEMORY_BYTES = 64 * 2**20
RETURNED = 1.2  # of the memory before
RETURN_S = 30
# The goal is 0.1 s on an idle machine. Tests run on busy ones, and each fault took many seconds.
HEALTH_S = 2.0
BURST = 24
TIMEOUT_S = 120
REPORT = os.environ.get("PIPEWORK_HOSTILE_REPORT", "")
V1, V2 = "/v1/predict", "/v2/models/topics/infer"
HEALTH = "/grpc.health.v1.Health/Check"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
RECEIVED = f"limits.received_bytes={48 * 2**20}"  # of 120 MiB that are sent
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
# In its own process, because the tests keep this one busy. Checks over HTTP are new connections.
PROBER = """
import json, select, socket, sys, time
import grpc
host, port, address = sys.argv[1:]
channel = grpc.insecure_channel(address)
check = channel.unary_unary("/grpc.health.v1.Health/Check")
check(b"", timeout=60)
longest, longest_grpc, failures, count = 0.0, 0.0, [], 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.003)[0]:
    start = time.perf_counter()
    try:
        with socket.create_connection((host, int(port)), timeout=60) as opened:
            opened.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n")
            answer = b""
            while part := opened.recv(65536):
                answer += part
        if not answer.startswith(b"HTTP/1.1 200"):
            failures.append(repr(answer[:80]))
    except OSError as error:
        failures.append(repr(error))
    longest, count = max(longest, time.perf_counter() - start), count + 1
    start = time.perf_counter()
    try:
        check(b"", timeout=60)
    except grpc.RpcError as error:
        failures.append(repr(error))
    longest_grpc = max(longest_grpc, time.perf_counter() - start)
found = {"longest_s": longest, "longest_grpc_s": longest_grpc, "failures": failures, "count": count}
print(json.dumps(found))
"""


@dataclass(kw_only=True)
class HostileServer:
    """A server in its own process."""

    process: subprocess.Popen[str]
    http: tuple[str, int]
    grpc: tuple[str, int]
    log: Path

    def memory(self, name: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith(name)]
        return int(line.split()[1]) * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@dataclass(kw_only=True)
class Measured:
    """What was measured during an attack."""

    longest_s: float = 0.0
    longest_grpc_s: float = 0.0
    growth: int = 0
    left: int = 0
    failures: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def start_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., HostileServer]]:
    run = build_run(tmp_path_factory)
    processes = []

    def start(*settings: str) -> HostileServer:
        log = tmp_path_factory.mktemp("log") / "stderr"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", RUNNER, str(run), *settings],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
            )
        processes.append(process)
        assert process.stdout is not None
        url, *_, grpc = process.stdout.readline().split()
        return HostileServer(
            process=process, http=address(url.removeprefix("http://")), grpc=address(grpc), log=log
        )

    yield start
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    return host, int(port)


@pytest.fixture(scope="module")
def server(start_server: Callable[..., HostileServer]) -> HostileServer:
    """A server that has answered ordinary requests, small and large."""
    server = start_server()
    for texts in (["goal"], ["rain sun"] * 1000, ["goal team " * 200] * 1000):
        assert post(server, V1, json.dumps({"texts": texts}).encode()).startswith(b"HTTP/1.1 200")
    time.sleep(2.5)  # until memory is returned
    return server


@contextmanager
def attack(server: HostileServer, name: str) -> Iterator[Measured]:
    """Measure health checks and memory during the block; then check them."""
    measured = Measured()
    before = server.memory()
    server.forget_peak()
    prober = subprocess.Popen(
        [sys.executable, "-c", PROBER, *map(str, server.http), ":".join(map(str, server.grpc))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert prober.stdout is not None
    prober.stdout.readline()
    try:
        yield measured
        time.sleep(0.2)
    finally:
        output, _ = prober.communicate("\n")
    found = json.loads(output)
    measured.longest_s, measured.longest_grpc_s = found["longest_s"], found["longest_grpc_s"]
    measured.failures = found["failures"]
    measured.growth = server.memory("VmHWM") - before
    give_up_s = time.monotonic() + RETURN_S
    while server.memory() > RETURNED * before and time.monotonic() < give_up_s:
        time.sleep(0.1)
    measured.left = server.memory() - before
    report(name, measured, before)
    assert measured.failures == []
    assert measured.longest_s < HEALTH_S
    assert measured.longest_grpc_s < HEALTH_S
    assert measured.growth < MEMORY_BYTES
    assert measured.left < (RETURNED - 1) * before


def report(name: str, measured: Measured, before: int) -> None:
    values = {
        "attack": name,
        "longest_ms": round(measured.longest_s * 1e3, 1),
        "longest_grpc_ms": round(measured.longest_grpc_s * 1e3, 1),
        "growth_mib": round(measured.growth / 2**20, 1),
        "left_percent": round(100 * measured.left / before, 1),
    }
    sys.stdout.write(f"{json.dumps(values)}\n")
    if REPORT:
        with Path(REPORT).open("a") as file:
            file.write(f"{json.dumps(values)}\n")


# HTTP


def head(path: str, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: [::]", "Connection: close", *headers)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def plain(path: str, body: bytes) -> bytes:
    return head(path, f"Content-Length: {len(body)}") + body


def chunked(path: str, body: bytes, size: int = 7) -> bytes:
    parts = (body[start : start + size] for start in range(0, len(body), size))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head(path, "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"


def compressed(path: str, body: bytes, encoding: str = "gzip") -> bytes:
    data = gzip.compress(body, 9) if encoding == "gzip" else zlib.compress(body, 9)
    return head(path, f"Content-Length: {len(data)}", f"Content-Encoding: {encoding}") + data


def read(opened: socket.socket) -> bytes:
    parts = []
    with suppress(ConnectionError):
        while part := opened.recv(65536):
            parts.append(part)
    return b"".join(parts)


def post(server: HostileServer, path: str, body: bytes) -> bytes:
    with socket.create_connection(server.http, timeout=TIMEOUT_S) as opened:
        opened.sendall(plain(path, body))
        return read(opened)


def send(server: HostileServer, data: bytes, times: int) -> list[bytes]:
    """Send data on this many connections at a time; return the responses."""
    assert len(data) <= WIRE_BYTES
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(server.http, timeout=TIMEOUT_S))
            for _ in range(times)
        ]
        for connection in opened:
            with suppress(ConnectionError):  # an early response closes it
                connection.sendall(data)
        return [read(connection) for connection in opened]


@dataclass(frozen=True, kw_only=True)
class Body:
    """A body that repeats a part up to a size."""

    start: bytes
    part: bytes
    end: bytes
    path: str = V1

    def of(self, size: int) -> bytes:
        count = (size - len(self.start) - len(self.end)) // len(self.part)
        return self.start + self.part * count + self.end


DATA = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":['
INPUT = b'{"name":"text","shape":[1],"datatype":"BYTES","data":["a"]}'
# Many words, repeated within the window of gzip.
WORDS = b" ".join(b"%x" % (number * 2_654_435_761 % 2**24) for number in range(2_000))[:9_900] * 10
BODIES = {
    "numbers": Body(start=b'{"texts":[', part=b"0,", end=b"0]}"),
    "floats": Body(start=b'{"texts":[', part=b"1e9,", end=b"0]}"),
    "empty texts": Body(start=b'{"texts":[', part=b'"",', end=b'""]}'),
    "escaped texts": Body(start=b'{"texts":[', part=b'"\\\\\\"",', end=b'""]}'),
    "lists": Body(start=b'{"texts":[', part=b"[],", end=b"[]]}"),
    "nested lists": Body(start=b'{"texts":', part=b"[", end=b"0"),
    "empty inputs": Body(start=b'{"inputs":[', part=b"{},", end=b"{}]}"),
    "inputs": Body(start=b'{"inputs":[', part=b'{"text":""},', end=b'{"text":""}]}'),
    "entities": Body(start=b'{"inputs":[{"text":"a","entities":[', part=b"0,", end=b"0]}]}"),
    "unknown fields": Body(start=b'{"texts":["a"],', part=b'"b":[],', end=b'"b":[]}'),
    "a long text": Body(start=b'{"texts":["', part=b"a ", end=b'"]}'),
    "a long word": Body(start=b'{"texts":["', part=b"\\u0061", end=b'"]}'),
    "long texts": Body(start=b'{"texts":["a"', part=b',"%s"' % WORDS, end=b"]}"),
    "long texts with an emoji": Body(
        start=b'{"texts":["a"', part=b',"%s \xf0\x9f\x98\x80"' % WORDS, end=b"]}"
    ),
    "v2 numbers": Body(start=DATA, part=b"0,", end=b"0]}]}", path=V2),
    "v2 empty texts": Body(start=DATA, part=b'"",', end=b'""]}]}', path=V2),
    "v2 lists": Body(start=DATA, part=b'[""],', end=b'[""]]}]}', path=V2),
    "v2 lists of numbers": Body(start=DATA + b"[", part=b"0,", end=b"0]]}]}", path=V2),
    "v2 dimensions": Body(
        start=b'{"inputs":[{"name":"text","datatype":"BYTES","data":[""],"shape":[',
        part=b"1,",
        end=b"1]}]}",
        path=V2,
    ),
    "v2 inputs": Body(start=b'{"inputs":[', part=INPUT + b",", end=INPUT + b"]}", path=V2),
    "v2 outputs": Body(
        start=b'{"inputs":[' + INPUT + b'],"outputs":[',
        part=b'{"name":"label"},',
        end=b"0]}",
        path=V2,
    ),
    "v2 parameters": Body(
        start=b'{"inputs":[' + INPUT + b'],"parameters":{',
        part=b'"a":[],',
        end=b'"a":[]}}',
        path=V2,
    ),
    "v2 long texts": Body(start=DATA + b'"a"', part=b',"%s"' % WORDS, end=b"]}]}", path=V2),
    "index": Body(start=b'{"ready":[', part=b"0,", end=b"0]}", path="/v2/repository/index"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body(server: HostileServer, name: str) -> None:
    body = BODIES[name]
    large = body.of(BODY_BYTES)
    with attack(server, f"http plain: {name}"):
        send(server, plain(body.path, body.of(WIRE_BYTES - 1000)), BURST)
    with attack(server, f"http chunked: {name}"):
        send(server, chunked(body.path, body.of(WIRE_BYTES // 2)), BURST)
    for encoding in ("gzip", "deflate"):
        with attack(server, f"http {encoding}: {name}"):
            for times in (1, BURST):
                send(server, compressed(body.path, large, encoding), times)


def gzip_of(*members: bytes) -> bytes:
    data = b"".join(members)
    return head(V1, f"Content-Length: {len(data)}", "Content-Encoding: gzip") + data


BOMB = gzip.compress(b" " * 60_000_000, 9)
REQUEST = b"GET /healthz HTTP/1.1\r\nHost:[::]\r\n\r\n"
STREAMS = {
    "a bomb": gzip_of(BOMB),
    "half of a bomb": head(V1, "Content-Length: 64000", "Content-Encoding: gzip") + BOMB[:60_000],
    "many members": gzip_of(gzip.compress(b"") * 3000),
    "members that expand": gzip_of(gzip.compress(b" " * 300_000) * 100),
    "pipelined requests": REQUEST * (WIRE_BYTES // len(REQUEST)),
    "pipelined upgrades": REQUEST.replace(b"Host", b"Upgrade:h2c\r\nConnection:Upgrade\r\nHost")
    * 800,
    "pipelined errors": b"GET /a HTTP/1.1\r\nHost:[::]\r\n\r\n" * 2400,
    "requests rejected from their heads": b"GET /%0a HTTP/1.1\r\nHost:\r\n\r\n" * 2340,
    "chunks of a byte": chunked(V1, b" " * 10_000, 1),
    "many headers": head(V1, *["a:"] * 15_000),
    "many keys": head(V1, *["X-API-Key: a"] * 4000),
    "a long path": head("/" + "a" * 60_000),
    "half of a head": head(V1, "a: " + "a" * 60_000)[:-2],
    "half of a body": head(V1, "Content-Length: 8000000") + b"[" * 60_000,
    "not HTTP": b"\0" * WIRE_BYTES,
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_bytes(server: HostileServer, name: str) -> None:
    data = STREAMS[name][:WIRE_BYTES]
    with attack(server, f"http: {name}"), ExitStack() as stack:
        for _ in range(BURST):
            opened = stack.enter_context(socket.create_connection(server.http, timeout=TIMEOUT_S))
            with suppress(ConnectionError):
                opened.sendall(data)
        time.sleep(1)


def test_clients_that_do_not_read(server: HostileServer) -> None:
    request = b"GET /docs/static/swagger-ui-bundle.js HTTP/1.1\r\nHost: [::]\r\n\r\n"
    with attack(server, "http: 150 unread responses"), ExitStack() as stack:
        for _ in range(150):
            opened = stack.enter_context(socket.socket())
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            opened.settimeout(TIMEOUT_S)
            opened.connect(server.http)
            opened.sendall(request)
        time.sleep(3)


# gRPC


def tensor(**parts: object) -> dict[str, object]:
    return {"name": "text", "datatype": "BYTES", "shape": [1], **parts}


def raw(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def infer(**parts: object) -> bytes:
    request = proto.ModelInferRequest(**{"model_name": "topics", "inputs": [tensor()], **parts})
    data: bytes = request.SerializeToString()
    return data


MILLION = 10**6
MESSAGES: dict[str, Callable[[], bytes]] = {
    "long texts": lambda: infer(
        inputs=[tensor(shape=[42, 1])], raw_input_contents=[raw(WORDS) * 42]
    ),
    "empty texts": lambda: infer(raw_input_contents=[bytes(4 * MILLION)]),
    "empty contents": lambda: infer(
        inputs=[tensor(contents={"bytes_contents": [b""] * 2 * MILLION})]
    ),
    "numbers": lambda: infer(inputs=[tensor(contents={"int64_contents": [1] * 4 * MILLION})]),
    "dimensions": lambda: infer(inputs=[tensor(shape=[1] * 4 * MILLION)]),
    "inputs": lambda: infer(inputs=[{}] * 2 * MILLION),
    "outputs": lambda: infer(raw_input_contents=[raw(b"a")], outputs=[{"name": "label"}] * 400_000),
    "raw contents": lambda: infer(raw_input_contents=[b""] * 2 * MILLION),
    "parameters": lambda: infer(raw_input_contents=[raw(b"a")]) + b"\x22\0" * 4 * MILLION,
    "a long name": lambda: infer(model_name="a" * 4 * MILLION),
    "a bomb": lambda: bytes(60 * MILLION),
}


def call(server: HostileServer, data: bytes, times: int) -> None:
    """Send a message on this many connections at a time, and wait until all calls have ended."""
    assert len(data) <= WIRE_BYTES
    encoding = "gzip" if data[0] else "identity"
    with ExitStack() as stack:
        opened = [stack.enter_context(Http2Connection(server.grpc)) for _ in range(times)]
        for connection in opened:
            connection.call(1, encoding=encoding)
            connection.send(1, data, end=True)
        give_up_s = time.monotonic() + TIMEOUT_S
        for connection in opened:
            while not connection.ended:
                assert connection.receive(0.1)
                assert time.monotonic() < give_up_s


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message(server: HostileServer, name: str) -> None:
    data = MESSAGES[name]()
    with attack(server, f"grpc plain: {name}"):
        call(server, message(data[: WIRE_BYTES - 1000]), BURST)
    packed = message(gzip.compress(data, 9), compressed=True)
    del data
    with attack(server, f"grpc gzip: {name}"):
        for times in (1, BURST):
            call(server, packed, times)


def test_many_calls_of_a_connection(server: HostileServer) -> None:
    data = message(infer(raw_input_contents=[raw(b"a")]))
    with attack(server, "grpc: 400 calls"), Http2Connection(server.grpc) as opened:
        for number in range(400):
            opened.call(2 * number + 1)
            opened.send(2 * number + 1, data, end=True)
        while len(opened.ended) < 400:
            assert opened.receive(10)


@pytest.mark.parametrize("method", [HEALTH, INFER])
def test_calls_without_a_message(server: HostileServer, method: str) -> None:
    name = f"grpc: 1000 calls without a message: {method}"
    with attack(server, name), Http2Connection(server.grpc) as opened:
        for number in range(1000):
            opened.call(2 * number + 1, method)
        time.sleep(2)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_repeated_headers(server: HostileServer, acknowledged: bool) -> None:
    """A byte of a block is a header of 4,000 bytes: 1.2 GB in 99 calls of each connection."""
    block = call_headers() + b"\xbe" * 300
    with attack(server, f"grpc: repeated headers, acknowledged: {acknowledged}"):
        for _ in range(10):
            with Http2Connection(server.grpc) as opened:
                opened.send_headers(1, call_headers() + table_entry(4000), END_STREAM)
                if acknowledged:
                    opened.send_frame(SETTINGS, ACK)
                    time.sleep(0.1)
                for number in range(1, 100):
                    opened.send_headers(2 * number + 1, block, END_STREAM)
                time.sleep(0.5)


@pytest.mark.parametrize("method", [HEALTH, INFER, STREAM])
@pytest.mark.parametrize("one_connection", [False, True])
def test_incomplete_messages(
    start_server: Callable[..., HostileServer], method: str, one_connection: bool
) -> None:
    """The parts together are much larger than the limit of memory."""
    server = start_server(RECEIVED)
    part = message(bytes(BODY_BYTES - 1000), size=BODY_BYTES)
    kind = "one connection" if one_connection else "many connections"
    with attack(server, f"grpc: incomplete messages, {kind}: {method}"), ExitStack() as stack:
        shared = stack.enter_context(Http2Connection(server.grpc))
        for number in range(30):
            stream = 2 * number + 1 if one_connection else 1
            opened = shared if one_connection else stack.enter_context(Http2Connection(server.grpc))
            opened.call(stream, method)
            opened.send(stream, part, timeout_s=1)


def test_incomplete_bodies(start_server: Callable[..., HostileServer]) -> None:
    """As above, over HTTP."""
    server = start_server(RECEIVED)
    part = head(V1, f"Content-Length: {BODY_BYTES}") + bytes(BODY_BYTES - 1000)
    with attack(server, "http: incomplete bodies"), ExitStack() as stack:
        for _ in range(30):
            opened = stack.enter_context(socket.create_connection(server.http, timeout=TIMEOUT_S))
            with suppress(ConnectionError):
                opened.sendall(part)
        time.sleep(0.5)


# Idle connections


IDLE = {
    "http": b"",
    "http with half of a head": b"GET / HTTP/1.1\r\nHost",
    "http after a request": REQUEST,
    "grpc": b"",
    "grpc with a preface": PREFACE,
    "grpc with settings": PREFACE + frame(SETTINGS, 0, 0),
}


@pytest.fixture
def open_files() -> Iterator[Callable[[int], None]]:
    """A function that raises the limit of open files of this process, or skips the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def need(count: int) -> None:
        if hard != resource.RLIM_INFINITY and hard < count:
            pytest.skip(f"the limit of open files is {hard}; {count} are needed: ulimit -Hn")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))

    yield need
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_idle(server: HostileServer, kind: str, count: int) -> None:
    address = server.http if kind.startswith("http") else server.grpc
    with attack(server, f"{count} idle connections: {kind}"), ExitStack() as stack:
        for _ in range(count):
            opened = stack.enter_context(socket.create_connection(address, timeout=TIMEOUT_S))
            with suppress(ConnectionError):
                opened.sendall(IDLE[kind])
        time.sleep(1)
        answer = post(server, V1, b'{"texts": ["goal"]}')
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("kind", IDLE)
def test_idle_connections(
    start_server: Callable[..., HostileServer], open_files: Callable[[int], None], kind: str
) -> None:
    open_files(1000)
    server = start_server("limits.connections=100")
    open_idle(server, kind, 500)
    assert server.files() < 250


@pytest.mark.parametrize("kind", IDLE)
def test_ten_thousand_idle_connections(
    server: HostileServer, open_files: Callable[[int], None], kind: str
) -> None:
    open_files(12_000)
    open_idle(server, kind, 10_000)


def test_the_server_still_works_afterwards(server: HostileServer) -> None:
    assert b"sport" in post(server, V1, b'{"texts": ["goal"]}')
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if "limit of 4096 connections" not in line] == []
