"""Shutdown by SIGTERM with requests and connections that do not end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from pipework.serve.http.shutdown import drain_s
from tests.serve.servers import wait_while_it_exists
from tests.serve.test_run import metric, wait_for

GRACE_S = 6
WITHIN_S = 60.0
TEXT = "rain sun wind goal team match bank rate stock " * 3
STUCK = {"texts": [TEXT] * 1000}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def server(slow_run, start_server):
    return start_server(slow_run, f"grace_s={GRACE_S}", "queue.tokens=10000000")


def connect(server, data) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    opened.sendall(data)
    return opened


def test_open_connections_do_not_delay_the_shutdown(slow_run, start_server):
    server = start_server(slow_run, "grace_s=60")
    idle = connect(server, b"GET /healthz HTTP/1.1\r\nHost: [::]\r\n\r\n")
    assert idle.recv(12) == b"HTTP/1.1 200"
    head = connect(server, b"GET /hea")
    silent = connect(server, b"")
    started_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started_s < drain_s(60) / 2
    for opened in (idle, head, silent):
        opened.close()


def test_a_request_on_an_open_connection_is_answered_while_the_server_stops(server):
    request = b"POST /v1/predict HTTP/1.1\r\nHost: [::]\r\nContent-Length: 18\r\n\r\n"
    request += b'{"texts":["rain"]}'
    opened = connect(server, request)
    assert opened.recv(1 << 16).startswith(b"HTTP/1.1 200")
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: refuses(server))
    opened.sendall(request)
    answer = opened.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
    assert opened.recv(1) == b""
    opened.close()
    assert server.process.wait(WITHIN_S) == 0


def refuses(server) -> bool:
    try:
        connect(server, b"").close()
    except ConnectionRefusedError:
        return True
    return False


def test_unfinished_requests_are_answered_503_and_the_exit_code_is_0(server):
    body, bulk = json.dumps(STUCK).encode(), {"X-Priority": "bulk"}
    half = connect(server, b"POST /v1/predict HTTP/1.1\r\nHost: [::]\r\nContent-Length: 9\r\n\r\n{")
    with (
        httpx.Client(base_url=server.url, timeout=WITHIN_S) as client,
        ThreadPoolExecutor(30) as pool,
    ):
        stuck = [
            pool.submit(client.post, "/v1/predict", content=body, headers=bulk) for _ in range(20)
        ]
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 20)
        small = pool.submit(client.post, "/v1/predict", json={"texts": [TEXT] * 30})
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 21 or small.done())
        started_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WITHIN_S) == 0
        assert time.monotonic() - started_s < GRACE_S + 10
        assert small.result().status_code == 200
        answers = [future.result() for future in stuck]
    rejected = [answer for answer in answers if answer.status_code != 200]
    assert rejected, "the machine is too fast for this test: make STUCK larger"
    error = {"error": "the server stopped before the request was answered"}
    assert [(answer.status_code, answer.json()) for answer in rejected] == [(503, error)] * len(
        rejected
    )
    assert half.recv(12) == b"HTTP/1.1 503"
    half.close()


PROGRAM = """
import logging, sys, threading, time
from pipework.serve.http.shutdown import grace_period
logging.basicConfig(format="%(message)s")
stopping = threading.Event()
with grace_period(stopping, {grace_s}):
    stopping.set()
    print("output", end="")
    {statement}
sys.exit(7)
"""


def run_with(statement: str, grace_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(statement=statement, grace_s=grace_s)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )


def test_a_hanging_process_exits_with_0_and_a_log_line():
    done = run_with("time.sleep(1000)", 2)
    assert (done.returncode, done.stdout) == (0, "output")
    assert done.stderr == "the grace period of 2 s is over: exiting with unanswered requests\n"


def test_a_hanging_process_exits_even_if_its_output_cannot_be_written():
    command = [sys.executable, "-c", PROGRAM.format(statement="time.sleep(30)", grace_s=1)]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # the output is written at the exit
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, timeout=60, cwd=ROOT, check=False, env=buffered)
    assert done.returncode == 0


def test_a_process_that_ends_in_time_keeps_its_exit_code():
    done = run_with("pass", 30)
    assert (done.returncode, done.stderr) == (7, "")


def test_part_of_the_grace_period_is_reserved():
    assert [drain_s(grace_s) for grace_s in (1, 2, 3, 30)] == [1, 1, 1, 28]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hanging_engine_does_not_extend_the_grace_period(run, launch, tmp_path, workers):
    stuck = tmp_path / "stuck"
    before = partial(wait_while_it_exists, stuck)
    process = launch(run, settings=["grace_s=2"], before=before, workers=workers)
    url = process.first_line().split()[0]
    stuck.touch()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{url}/v1/predict", json={"texts": ["goal"]}, timeout=60)
        time.sleep(0.5)
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert 1 < time.monotonic() - began_s < 5  # and the exit of a busy machine
        assert answer.exception() or answer.result().status_code == 503


def test_output_that_cannot_be_written_ends_a_server_at_its_start(run):
    command = [sys.executable, "-m", "pipework", "serve", run, "--port=0", "--grpc-port=0"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, text=True
        )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert lines == [
        "error: standard output cannot be written: No space left on device",
        "hint: redirect it to another file, or free space",
    ]
