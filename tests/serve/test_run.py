import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipework.errors import ConfigError
from pipework.serve.run import Address, _bound

BIG = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 400}
StartServer = Callable[[Path], Any]
TOKENS = 29  # of one of its texts
GONE = 'pipework_requests_total{door="v1",model="topics",status="499"}'
READY_WITHIN_S = 120  # the promise is 3; the machines of CI are shared and slow


def metric(url: str, name: str) -> float:
    """Return a metric of the one model that is served."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = (line for line in lines if line.startswith((f"{name} ", f"{name}{{model")))
    return next((float(line.split()[-1]) for line in found), 0.0)


def wait_for(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + READY_WITHIN_S
    while not condition():
        assert time.monotonic() < limit_s, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def fails_with(launch: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """A function that starts a server that must not start, and returns what it said."""

    def fail(run: Path, port: int = 0) -> str:
        process = launch(run, port)
        out, err = process.communicate(timeout=READY_WITHIN_S)
        assert (process.returncode, out) == (1, "")
        return err

    return fail


def test_a_started_server_is_ready_soon_and_answers(server) -> None:
    assert server.ready_after_s < READY_WITHIN_S
    answer = httpx.post(f"{server.url}/v1/predict", json={"texts": ["goal"]})
    assert answer.json()["predictions"][0]["label"] == "sport"


def test_the_process_maps_no_torch_and_stays_small(server) -> None:
    maps = server.proc("maps")
    assert "onnxruntime" in maps
    assert "torch" not in maps
    (line,) = [line for line in server.proc("status").splitlines() if line.startswith("VmRSS")]
    assert int(line.split()[1]) < 400 * 1024


def test_an_answer_does_not_wait_for_delayed_acknowledgements(server) -> None:
    with httpx.Client(base_url=server.url) as client:
        times_s = []
        for _ in range(100):
            start_s = time.perf_counter()
            client.post("/v1/predict", json={"texts": ["goal"]})
            times_s.append(time.perf_counter() - start_s)
    # Each would be 0.04, but for the first ones, which clients acknowledge at once.
    assert min(times_s[30:]) < 0.03


def test_it_listens_on_this_machine_only(server) -> None:
    assert server.url.startswith("http://127.0.0.1:")


def test_sigterm_answers_all_that_was_accepted_and_exits_0(
    slow_run: Path, start_server: StartServer
) -> None:
    server = start_server(slow_run, "grace_s=300")
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(httpx.post, f"{server.url}/v1/predict", json=BIG, timeout=300)
            for _ in range(4)
        ]
        wait_for(lambda: metric(server.url, "pipework_queue_requests") >= 4)
        assert server.stop() == 0
        answers = [future.result() for future in asked]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert all(len(answer.json()["predictions"]) == 400 for answer in answers)


def test_a_full_queue_answers_429_and_when_to_come_back(
    slow_run: Path, start_server: StartServer
) -> None:
    server = start_server(slow_run, "queue.tokens=1000")
    huge = {"texts": BIG["texts"] * 2}
    with ThreadPoolExecutor(8) as pool:
        asked: list[Future[httpx.Response]] = [
            pool.submit(httpx.post, f"{server.url}/v1/predict", json=huge, timeout=60)
            for _ in range(6)
        ]
        wait_for(lambda: metric(server.url, "pipework_queue_tokens") >= 5_000)
        refused = httpx.post(f"{server.url}/v1/predict", json={"texts": ["goal"]}, timeout=60)
        server.process.kill()
        for future in asked:
            future.exception()
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1


def test_a_request_whose_client_hung_up_is_dropped(
    slow_run: Path, start_server: StartServer
) -> None:
    server = start_server(slow_run)
    with ThreadPoolExecutor(1) as pool:
        some, much = ({"texts": BIG["texts"][:1] * count} for count in (500, 1000))
        patient = pool.submit(httpx.post, f"{server.url}/v1/predict", json=some, timeout=60)
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 1)
        hasty = send_without_waiting(server.url, much)
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 2)
        hasty.close()
        wait_for(lambda: metric(server.url, GONE) == 1)
        assert metric(server.url, "pipework_queue_requests") <= 1
        assert patient.result().status_code == 200
    # The two took turns: had both stayed, as many tokens of the other would have been computed.
    assert metric(server.url, "pipework_batch_tokens_total") < 1.7 * 500 * TOKENS
    assert server.stop() == 0


def test_a_hang_up_behind_a_large_body_is_noticed(
    slow_run: Path, start_server: StartServer
) -> None:
    server = start_server(slow_run)
    with send_without_waiting(server.url, {"texts": BIG["texts"][:1] * 690}, pause_s=0.2) as hasty:
        wait_for(lambda: metric(server.url, "pipework_queue_requests") == 1)
        hasty.close()
        wait_for(lambda: metric(server.url, GONE) == 1)
    assert metric(server.url, "pipework_texts_total") == 0
    assert server.stop() == 0


def send_without_waiting(url: str, request: object, pause_s: float = 0.0) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    body = json.dumps(request).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode())
    time.sleep(pause_s)  # so that the body is read in few and large parts
    connection.sendall(body)
    return connection


def test_a_taken_port_is_told_in_one_line(run: Path, fails_with: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = fails_with(run, port)
    assert said.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert said.count("\n") == 1


def test_a_port_that_another_server_holds_while_it_loads_is_told(
    run: Path, fails_with: Callable[..., str]
) -> None:
    with _bound("127.0.0.1", 0, "--port") as held:
        port = held.getsockname()[1]
        assert fails_with(run, port).startswith(f"cannot listen on 127.0.0.1:{port}: ")


def test_a_port_whose_last_connection_is_closing_can_be_had_again(
    run: Path, start_server: StartServer, launch: Callable[..., subprocess.Popen[str]]
) -> None:
    server = start_server(run)
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert kept.recv(12) == b"HTTP/1.1 200"
        assert server.stop() == 0  # it closes first, so that its end waits for a minute
        while kept.recv(4096):
            pass
    again = launch(run, port)
    assert again.stdout is not None
    assert again.stdout.readline().startswith(f"http://127.0.0.1:{port} ")
    again.terminate()
    assert again.wait(60) == 0


def test_one_port_for_both_doors_is_told_before_anything_is_done() -> None:
    with pytest.raises(ConfigError, match="--port and --grpc-port are both 8001"):
        Address(port=8001)
    Address(port=0, grpc_port=0)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_models_load_ends_it_with_0_and_a_line(
    shelf: Any, launch: Callable[..., subprocess.Popen[str]], sign: signal.Signals
) -> None:
    shelf.add(1)
    config = shelf.folder / "topics" / "config.pbtxt"
    config.unlink()
    os.mkfifo(config)  # who reads it waits
    process = launch(shelf.folder)
    kept: list[int] = []
    wait_for(lambda: is_read(config, kept))
    wchan = Path(f"/proc/{process.pid}/wchan")  # 0 where a kernel does not say
    wait_for(lambda: "pipe_read" in wchan.read_text() or wchan.read_text() == "0")
    process.send_signal(sign)
    out, err = process.communicate(timeout=READY_WITHIN_S)
    os.close(kept[0])
    assert (process.returncode, out, err) == (0, "", f"stopped by {sign.name}\n")


def is_read(pipe: Path, kept: list[int]) -> bool:
    with suppress(OSError):  # nobody reads it yet
        kept.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(kept)


@pytest.mark.parametrize("name", ["tokenizer.json", "engines/onnx/model.onnx"])
def test_a_tampered_file_is_refused_by_name(
    run: Path, tmp_path: Path, name: str, fails_with: Callable[..., str]
) -> None:
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    with (copied / name).open("ab") as file:
        file.write(b"\n")
    assert f"{name} changed" in fails_with(copied)


def test_an_unproven_engine_is_refused_by_name(
    make_run: Callable[..., Path], fails_with: Callable[..., str]
) -> None:
    assert "engine onnx did not pass parity" in fails_with(make_run(passed=False))
