"""SIGTERM with requests and connections that do not end."""

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from pipework.serve.http.shutdown import drain_s

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


def test_connections_that_are_held_open_hold_nothing_up(slow_run, start_server):
    server = start_server(slow_run, "grace_s=60")
    idle = connect(server, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert idle.recv(12) == b"HTTP/1.1 200"
    head = connect(server, b"GET /hea")
    silent = connect(server, b"")
    begun_s = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun_s < drain_s(60) / 2
    for opened in (idle, head, silent):
        opened.close()


def test_stuck_requests_are_told_so_the_others_answered_and_the_exit_is_0_in_time(server):
    body, bulk = json.dumps(STUCK).encode(), {"X-Priority": "bulk"}
    half = connect(server, b"POST /v1/predict HTTP/1.1\r\nContent-Length: 99\r\n\r\n{")
    with (
        httpx.Client(base_url=server.url, timeout=WITHIN_S) as client,
        ThreadPoolExecutor(30) as pool,
    ):
        stuck = [
            pool.submit(client.post, "/v1/predict", content=body, headers=bulk) for _ in range(20)
        ]
        wait_for(lambda: waiting(client) == 20)
        small = pool.submit(client.post, "/v1/predict", json={"texts": [TEXT] * 30})
        wait_for(lambda: waiting(client) == 21 or small.done())
        begun_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WITHIN_S) == 0
        assert time.monotonic() - begun_s < GRACE_S + 10
        assert small.result().status_code == 200
        answers = [one.result() for one in stuck]
    refused = [one for one in answers if one.status_code != 200]
    assert refused, "the machine is too fast for this test: make STUCK larger"
    said = {"error": "the server stopped before the request was answered"}
    assert [(one.status_code, one.json()) for one in refused] == [(503, said)] * len(refused)
    assert half.recv(12) == b"HTTP/1.1 503"
    half.close()


def wait_for(holds) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.02)


def waiting(client) -> float:
    lines = client.get("/metrics").text.splitlines()
    (line,) = [one for one in lines if one.startswith("pipework_queue_requests{")]
    return float(line.split()[-1])


HELD = """
import logging, sys, threading, time
from pipework.serve.http.shutdown import Grace
logging.basicConfig(format="%(message)s")
stopping = threading.Event()
with Grace(stopping, {grace_s}):
    stopping.set()
    print("said", end="")
    {held}
sys.exit(7)
"""


def held_by(statement: str, grace_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HELD.format(held=statement, grace_s=grace_s)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )


def test_what_hangs_is_left_with_0_and_a_word_in_the_log():
    done = held_by("time.sleep(1000)", 2)
    assert (done.returncode, done.stdout) == (0, "said")
    assert done.stderr == "the grace of 2 s is over, and not all was answered\n"


def test_what_ends_in_time_ends_as_it_will():
    done = held_by("pass", 30)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_part_of_the_grace_is_kept_for_the_end():
    assert [drain_s(grace_s) for grace_s in (1, 2, 3, 30)] == [1, 1, 1, 28]
