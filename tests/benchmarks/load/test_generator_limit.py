"""The limit of the load generator is measured without the server, with a responder."""

import asyncio
import subprocess
import sys

import pytest

from pipework.benchmarks.load import generator_limit as module
from pipework.benchmarks.load.generator_limit import ImmediateResponder, generator_limit
from pipework.benchmarks.load.level_run import LevelDuration
from pipework.benchmarks.load.workload import Workload
from pipework.benchmarks.targets import target
from pipework.benchmarks.targets.http_connections import ConnectionPool, post_request
from pipework.errors import NotReadyError
from pipework.progress import NullProgress

WORKLOAD = Workload.synthetic(texts_per_request=1, seed=0)


def measure(url):
    return generator_limit(target(url), WORKLOAD, response_bytes=100, progress=NullProgress())


def test_there_is_no_responder_for_grpc():
    assert measure("grpc://127.0.0.1:9/model") is None


def test_the_rate_is_that_of_a_local_responder(serve, monkeypatch):
    short = LevelDuration(warmup_s=0.05, duration_s=0.3, limit_s=0.3)
    monkeypatch.setattr(module, "DURATION", short)
    server = serve(delay_s=1.0)  # slower than any responder
    assert measure(server.url) > 16
    assert server.bodies == []


def test_a_responder_that_does_not_start_is_reported(monkeypatch):
    monkeypatch.setattr(module.sys, "executable", "/bin/true")
    with pytest.raises(NotReadyError, match=r"responder .* did not start"):
        measure("http://127.0.0.1:9")


REQUEST = post_request("127.0.0.1", "/any", b"content", {})


class Written:
    """A transport that keeps what is written."""

    def __init__(self):
        self.content = b""

    def write(self, data):
        self.content += data


@pytest.fixture
def transport():
    return Written()


def responder(transport, size):
    found = ImmediateResponder(size)
    found.connection_made(transport)
    return found


def test_a_response_has_a_body_of_the_given_size(transport):
    responder(transport, 1000).data_received(REQUEST)
    head, _, body = transport.content.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Length: 1000" in head
    assert body == bytes(1000)


def test_a_request_is_answered_when_it_is_complete(transport):
    found = responder(transport, 1)
    for byte in REQUEST[:-1]:
        found.data_received(bytes([byte]))
    assert transport.content == b""
    found.data_received(REQUEST[-1:])
    assert transport.content.count(b"HTTP/1.1 200") == 1


def test_each_request_on_a_connection_is_answered(transport):
    responder(transport, 1).data_received(3 * REQUEST)
    assert transport.content.count(b"HTTP/1.1 200") == 3


def test_the_program_prints_its_port_and_ends_with_its_input():
    command = [sys.executable, "-P", "-m", "pipework.benchmarks.load.generator_limit", "10"]

    async def ask(port):
        pool = ConnectionPool("127.0.0.1", port, None, 1)
        try:
            return await pool.send(REQUEST)
        finally:
            pool.close()

    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        response = asyncio.run(ask(int(process.stdout.readline())))
        process.stdin.close()
        assert process.wait(20) == 0
    assert (response.status, len(response.body)) == (200, 10)
