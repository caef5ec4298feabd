import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pipework.serve import run as serve_run
from pipework.serve.run import _Server
from pipework.serve.sockets import ListenAddress, bound_socket
from tests.commands import ForkedProcess
from tests.serve import servers

BIG = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 400}
StartServer = Callable[[Path], Any]
TOKENS = 29  # per text of BIG
DISCONNECTED = 'pipework_requests_total{door="v1",model="topics",status="499"}'
READY_WITHIN_S = 120  # expected are 3 s, but CI machines are shared and slow


def metric(url: str, name: str) -> float:
    """Return a metric of the only model."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    matches = (line for line in lines if line.startswith((f"{name} ", f"{name}{{model")))
    return next((float(line.split()[-1]) for line in matches), 0.0)


def wait_for(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + READY_WITHIN_S
    while not condition():
        assert time.monotonic() < limit_s, "timeout"
        time.sleep(0.01)


@pytest.fixture
def fails_with(launch: Callable[..., ForkedProcess]) -> Callable[..., str]:
    """A function that starts a server, checks that it fails, and returns its stderr."""

    def fail(run: Path, port: int = 0) -> str:
        done = launch(run, port).finish()
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    return fail


def test_a_response_is_not_delayed_by_nagles_algorithm(server) -> None:
    with httpx.Client(base_url=server.url) as client:
        times_s = []
        for _ in range(100):
            start_s = time.perf_counter()
            client.post("/v1/predict", json={"texts": ["goal"]})
            times_s.append(time.perf_counter() - start_s)
    # With Nagle's algorithm each takes 0.04 s, except the first, which clients acknowledge at once.
    assert min(times_s[30:]) < 0.03


def test_the_default_address_is_local(server) -> None:
    assert server.url.startswith("http://127.0.0.1:")


def listen_everywhere() -> None:
    vars(servers)["ListenAddress"] = partial(ListenAddress, host="0.0.0.0")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("public", "host"), [("false", "127.0.0.1"), ("true", "0.0.0.0")])
def test_grpc_is_public_only_on_request(
    run: Path, launch: Callable[..., ForkedProcess], workers: int, public: str, host: str
) -> None:
    settings = [f"security.public_grpc={public}"]
    process = launch(run, settings=settings, workers=workers, before=listen_everywhere)
    http, *_, grpc = process.first_line().split()
    assert http.startswith("http://0.0.0.0:")
    assert grpc.startswith(f"{host}:")


def test_a_request_is_dropped_when_its_client_disconnects(
    slow_run: Path, start_server: StartServer
) -> None:
    server = start_server(slow_run)
    with ThreadPoolExecutor(1) as pool:
        some, much = ({"texts": BIG["texts"][:1] * count} for count in (250, 500))
        patient = pool.submit(httpx.post, f"{server.url}/v1/predict", json=some, timeout=60)
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 1)
        hasty = send_without_waiting(server.url, much)
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 2)
        hasty.close()
        wait_for(lambda: metric(server.url, DISCONNECTED) == 1)
        assert metric(server.url, "pipework_queue_requests") <= 1
        assert patient.result().status_code == 200
    # Both requests are computed alternately; without the cancellation it would be 2 * 250 texts.
    assert metric(server.url, "pipework_batch_tokens_total") < 1.7 * 250 * TOKENS
    assert server.stop() == 0


def test_a_disconnect_after_a_large_body_is_detected(
    slow_run: Path, start_server: StartServer
) -> None:
    server = start_server(slow_run)
    with send_without_waiting(server.url, {"texts": BIG["texts"][:1] * 690}, pause_s=0.2) as hasty:
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 1)
        hasty.close()
        wait_for(lambda: metric(server.url, DISCONNECTED) == 1)
    assert metric(server.url, "pipework_texts_total") == 0
    assert server.stop() == 0


def send_without_waiting(url: str, request: object, pause_s: float = 0.0) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    body = json.dumps(request).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode())
    time.sleep(pause_s)  # so that the server reads the body in few large parts
    connection.sendall(body)
    return connection


def test_a_port_of_a_server_that_is_loading_is_reported(
    run: Path, fails_with: Callable[..., str]
) -> None:
    with bound_socket("127.0.0.1", 0, "--port") as listener:
        port = listener.getsockname()[1]
        assert fails_with(run, port).startswith(f"cannot listen on 127.0.0.1:{port}: ")


def test_a_port_with_a_closing_connection_can_be_used_again(
    run: Path, start_server: StartServer, launch: Callable[..., ForkedProcess]
) -> None:
    server = start_server(run)
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert (
            server.stop() == 0
        )  # the server closes first, so its side stays in TIME_WAIT for a minute
        while connection.recv(4096):
            pass
    second = launch(run, port)
    assert second.first_line().startswith(f"http://127.0.0.1:{port} ")
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0


def block_loading(pipe: Path) -> None:
    """Read a pipe before the models are loaded."""
    load = serve_run.open_models

    def slow(*arguments: Any) -> Any:
        pipe.read_bytes()
        return load(*arguments)

    serve_run.open_models = slow


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_loading_exits_with_0_and_a_log_line(
    run: Path, tmp_path: Path, launch: Callable[..., ForkedProcess], sign: signal.Signals
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # reading it blocks
    process = launch(run, before=partial(block_loading, pipe))
    writers: list[int] = []
    wait_for(lambda: is_read(pipe, writers))
    wchan = Path(f"/proc/{process.pid}/wchan")  # "0" if the kernel hides it
    wait_for(lambda: "pipe_read" in wchan.read_text() or wchan.read_text() == "0")
    process.send_signal(sign)
    done = process.finish()
    os.close(writers[0])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"stopped by {sign.name}\n")


def is_read(pipe: Path, writers: list[int]) -> bool:
    with suppress(OSError):  # no reader yet
        writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(writers)


def test_the_file_limit_is_raised_for_the_connections():
    program = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 6000))\n"
        "from pipework.serve.run import raise_file_limit\n"
        "for count in (600, 4096): print(raise_file_limit(count), *r.getrlimit(r.RLIMIT_NOFILE))\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (300, 300)); print(raise_file_limit(4096))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.split("\n")[:3] == ["600 4360 6000", "1146 6000 6000", "50"]
    assert done.stderr.startswith(
        "limits.connections is 1146 instead of 4096: the limit of open files (ulimit -Hn) is 6000\n"
    )


def test_connections_that_wait_to_be_accepted_are_accepted_when_the_server_stops():
    made: list[object] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    async def stop(listener: socket.socket) -> None:
        closed = SimpleNamespace(close=lambda: made.append("closed"))
        server = SimpleNamespace(
            config=SimpleNamespace(ssl=None), servers=[closed], _connections=Connection
        )
        await _Server._accept_last(server, [listener])  # type: ignore[arg-type]  # noqa: SLF001
        for connection in made[1:]:
            connection.abort()  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        listener.setblocking(False)
        for _ in range(3):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        asyncio.run(stop(listener))
    assert made[0] == "closed"  # before the accepted connections are served
    assert len(made) == 4
