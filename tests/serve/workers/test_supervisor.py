"""Servers of several processes, as `pipe serve --workers` starts them."""

import json
import os
import random
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil
import pytest

from pipework.client import Client as PipeClient
from pipework.closeable import Closeable
from pipework.errors import ConfigError
from pipework.machine import cpu_limit, cuda_devices
from pipework.scoring.evaluation import Engine
from pipework.serve.engines.openers import LocalOpener
from pipework.serve.models import open_models
from pipework.serve.workers.supervisor import worker_count
from pipework.text.encoding import Encoding
from tests.repetitions import repeated
from tests.serve.conftest import Server, Shelf
from tests.serve.test_run import metric, wait_for

TEXTS = [" ".join(words) for words in (["rain"] * 3, ["goal", "team"], ["bank"] * 40, ["match"])]
PREDICT = "/v1/predict"
CLIENTS, ANSWERS, KILLS = 6, 3_000, 6
TOLERANCE = 1e-5


def processes(server: Server) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return the engine processes and the front processes, by their names."""
    named = [(child.name(), child) for child in psutil.Process(server.process.pid).children()]
    engines = [child for name, child in named if name.startswith("pipe-engine-")]
    return engines, [child for name, child in named if name.startswith("pipe-front-")]


class Client(Closeable):
    """Sends requests over a connection, and connects again when it is lost."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection = HTTPConnection(self._address, timeout=120)

    def predict(self, texts: list[str]) -> tuple[int, dict]:
        """Return the status and the response; a lost connection raises an error."""
        try:
            body = json.dumps({"texts": texts})
            self._connection.request("POST", PREDICT, body, {"content-type": "application/json"})
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())
        except (OSError, HTTPException):
            self.reconnect()
            raise

    def reconnect(self) -> None:
        self._connection.close()
        self._connection = HTTPConnection(self._address, timeout=120)

    def close(self) -> None:
        self._connection.close()


class Load:
    """Clients that compare each answer until there are enough.

    Attributes:
        killing: whether processes are still to be killed, so that there are never enough.
        answers: number of answers.
        texts: number of their texts.
        lost: number of lost connections.
        wrong: differences and errors.
    """

    def __init__(self, url: str, answers: int) -> None:
        self._url, self._most = url, answers
        self._expected = {}
        with Client(url) as client:
            for text in TEXTS:
                _, answer = client.predict([text])
                self._expected[text] = answer["predictions"][0]
        self.answers = self.texts = len(TEXTS)
        self.lost = 0
        self.killing = True
        self.wrong: list[str] = []
        self.done = threading.Event()
        self._lock = threading.Lock()

    def run(self, seed: int) -> None:
        with Client(self._url) as client:
            self._send(client, random.Random(seed))

    def _send(self, client: Client, choose: random.Random) -> None:
        while not self.done.is_set():
            texts = choose.choices(TEXTS, k=choose.choice([1, 1, 1, 8]))
            if choose.random() < 0.05:
                client.reconnect()
            try:
                status, answer = client.predict(texts)
            except (OSError, HTTPException):
                with self._lock:
                    self.lost += 1
                continue
            self._compare(texts, status, answer)

    def _compare(self, texts: list[str], status: int, answer: dict) -> None:
        with self._lock:
            self.answers += 1
            self.texts += len(texts)
            if status != 200:
                self.wrong.append(str(answer))
            for text, found in zip(texts, answer.get("predictions", []), strict=status == 200):
                expected = self._expected[text]
                same = found["label"] == expected["label"]
                if not same or abs(found["score"] - expected["score"]) > TOLERANCE:
                    self.wrong.append(f"{text}: {found}")
            if self.wrong or (self.answers >= self._most and not self.killing):
                self.done.set()


@pytest.fixture(params=repeated([1, 2]), ids=["one engine process", "two engine processes"])
def engines(request: pytest.FixtureRequest) -> int:
    """Number of engine processes."""
    return request.param


@pytest.fixture(scope="module")
def servers(run: Path, start_server: Callable[..., Server]) -> dict[int, Server]:
    """Servers with two front processes, by the number of engine processes."""
    return {
        engines: start_server(run, f"queue.processes={engines}", workers=2) for engines in (1, 2)
    }


@pytest.fixture
def workers(servers: dict[int, Server], engines: int) -> Server:
    """A server with two front processes. Tests may kill these and the engine processes."""
    return servers[engines]


def test_answers_are_those_of_a_single_process(workers, server):
    texts = [*TEXTS, "", "no known word"]
    single, several = (
        httpx.post(f"{url}{PREDICT}", json={"texts": texts}).json()
        for url in (server.url, workers.url)
    )
    for one, other in zip(single.pop("predictions"), several.pop("predictions"), strict=True):
        assert one.pop("scores") == pytest.approx(other.pop("scores"), abs=TOLERANCE)
        assert one.pop("score") == pytest.approx(other.pop("score"), abs=TOLERANCE)
        assert one == other
    assert single == several


def test_metrics_are_those_of_all_processes(workers):
    count = 150
    texts, requests = metric(workers.url, "pipework_texts_total"), fronts_requests(workers)
    with Client(workers.url) as client:
        for _ in range(count):
            assert client.predict(["goal", "rain"])[0] == 200
            client.reconnect()  # to either process
    wait_for(lambda: fronts_requests(workers) == requests + count)  # counted just after the answer
    answered = metric(workers.url, "pipework_texts_total")
    assert answered == texts + 2 * count
    status = httpx.get(f"{workers.url}/v1/status").json()
    assert status["models"][0]["versions"][0]["totals"]["texts"] == answered
    assert status["recent"]["requests_per_s"] > 0
    assert metric(workers.url, "pipework_batch_texts_total") == answered
    assert metric(workers.url, "process_resident_memory_bytes") > 3 * 2**20


def fronts_requests(server: Server) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("pipework_requests_total")]
    return sum(float(line.split()[-1]) for line in counts)


def test_grpc_answers(workers):
    from tritonclient.grpc import InferenceServerClient, InferInput  # noqa: PLC0415

    text = InferInput("text", [2], "BYTES")
    text.set_data_from_numpy(np.array([b"goal", b"rain"], object))
    with InferenceServerClient(workers.grpc) as client:
        answer = client.infer("topics", [text])
    assert answer.as_numpy("label").ravel().tolist() == [b"sport", b"weather"]


@pytest.mark.thorough
def test_no_answer_is_lost_or_wrong_while_processes_are_killed(workers):
    load = Load(workers.url, ANSWERS)
    before = fronts_requests(workers) - load.answers
    choose, kills = random.Random(5), Counter[str]()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(load.run, seed) for seed in range(CLIENTS)]
        while sum(kills.values()) < KILLS and not load.done.wait(choose.uniform(0.2, 0.6)):
            with suppress(psutil.NoSuchProcess, IndexError, ValueError):  # one is being replaced
                by_kind = dict(zip(("engine", "front"), processes(workers), strict=True))
                kind = "engine" if kills["engine"] <= kills["front"] else "front"
                choose.choice(by_kind[kind]).kill()
                kills[kind] += 1
        load.killing = False
        for client in clients:
            client.result()
    assert load.wrong == []
    assert kills == {"engine": KILLS // 2, "front": KILLS // 2}
    # A connection of a killed process is lost, at most one of each client per kill.
    assert load.lost <= CLIENTS * kills["front"]
    wait_for(lambda: httpx.get(f"{workers.url}/readyz").status_code == 200)
    # A process counts a request just after its answer, so one that is killed may have sent answers
    # that it has not counted; it may also have counted requests whose answers were lost.
    uncounted = CLIENTS * kills["front"]
    wait_for(lambda: fronts_requests(workers) - before >= load.answers - uncounted)
    assert fronts_requests(workers) - before <= load.answers + load.lost


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_with_retries_gets_all_answers_while_front_processes_are_killed(servers, protocol):
    server, stopping = servers[1], threading.Event()
    url = server.url if protocol == "http" else f"grpc://{server.grpc}"

    def send() -> int:
        answers = 0
        with PipeClient(url, retries=5) as client:
            while not stopping.is_set():
                assert client.predict(["goal"])[0].label == "sport"
                answers += 1
        return answers

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(send) for _ in range(4)]
        try:
            for _ in range(3):
                stopping.wait(0.3)
                for front in processes(server)[1]:
                    front.kill()
        finally:
            stopping.set()
        assert min(client.result() for client in clients) > 0


def test_all_engine_processes_compute_and_their_loads_add_up(servers):
    server, count = servers[2], 60
    wait_for(
        lambda: metric(server.url, "pipework_engines_running") == 2 * min(2, -(-cpu_limit() // 2))
    )
    engines, _ = processes(server)
    assert sorted(engine.name() for engine in engines) == ["pipe-engine-0", "pipe-engine-1"]
    before_s = [cpu_s(engine) for engine in engines]
    texts = metric(server.url, "pipework_batch_texts_total")
    body = {"texts": TEXTS * 50}
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda _: httpx.post(f"{server.url}{PREDICT}", json=body), range(count))
        )
    assert {answer.status_code for answer in answers} == {200}
    spent_s = [cpu_s(engine) - before for engine, before in zip(engines, before_s, strict=True)]
    assert min(spent_s) > 0.2 * sum(spent_s) > 0
    assert metric(server.url, "pipework_batch_texts_total") == texts + count * len(TEXTS) * 50


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_the_other_engine_process_answers_while_one_is_stopped(slow_run, start_server):
    server = start_server(slow_run, "queue.processes=2", workers=2)
    wait_for(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
    large = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 50}
    with ThreadPoolExecutor(4) as pool:
        first = processes(server)[0][0]
        first.suspend()  # its requests stay with it until it ends
        stopped = [
            pool.submit(httpx.post, f"{server.url}{PREDICT}", json=large, timeout=300)
            for _ in range(4)
        ]
        wait_for(lambda: sum(future.done() for future in stopped) >= 1)
        assert not all(future.done() for future in stopped)
        first.kill()
        assert [future.result().status_code for future in stopped] == [200] * 4
    assert server.stop() == 0


def test_a_front_process_starts_while_an_engine_process_is_stopped(run, start_server):
    server = start_server(run, "queue.processes=2", workers=2)
    (first, _), fronts = processes(server)
    first.suspend()
    try:
        for front in fronts:
            front.kill()
        answer = httpx.post(f"{server.url}{PREDICT}", json={"texts": ["goal"]}, timeout=60)
        assert answer.status_code == 200
        # A front process knows the load after it has connected, which is after its first requests.
        wait_for(lambda: metric(server.url, "pipework_engines_running") >= 1)
    finally:
        first.resume()
    both = 2 * min(2, -(-cpu_limit() // 2))
    wait_for(lambda: metric(server.url, "pipework_engines_running") == both)
    assert server.stop() == 0


def test_sigterm_answers_all_accepted_requests_and_exits_with_0(slow_run, start_server, engines):
    server = start_server(slow_run, "grace_s=300", f"queue.processes={engines}", workers=2)
    large = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 150}
    with ThreadPoolExecutor(4) as pool:
        requests = [
            pool.submit(httpx.post, f"{server.url}{PREDICT}", json=large, timeout=300)
            for _ in range(4)
        ]
        wait_for(lambda: metric(server.url, "pipework_queue_requests") >= 4)
        children = psutil.Process(server.process.pid).children()
        assert server.stop() == 0
        answers = [future.result() for future in requests]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert not any(child.is_running() for child in children)


def test_a_full_queue_rejects_requests(slow_run, start_server):
    server = start_server(slow_run, "queue.tokens=1000", workers=2)
    huge = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 800}
    with ThreadPoolExecutor(8) as pool:
        requests = [
            pool.submit(httpx.post, f"{server.url}{PREDICT}", json=huge, timeout=60)
            for _ in range(6)
        ]
        wait_for(lambda: metric(server.url, "pipework_queue_tokens") >= 5_000)
        refused = [
            httpx.post(f"{server.url}{PREDICT}", json={"texts": ["goal"]}, timeout=60)
            for _ in range(6)
        ]
        for child in psutil.Process(server.process.pid).children():
            child.kill()
        server.process.kill()
        for future in requests:
            future.exception()
    assert [answer.status_code for answer in refused] == [429] * 6
    assert int(refused[0].headers["retry-after"]) >= 1


def test_a_disconnected_client_cancels_its_request(slow_run, start_server):
    server = start_server(slow_run, workers=2)
    large = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 400}
    with httpx.Client(timeout=0.3) as client, suppress(httpx.TimeoutException):
        client.post(f"{server.url}{PREDICT}", json=large)
    wait_for(lambda: metric(server.url, "pipework_queue_requests") == 0)
    counted = 'pipework_requests_total{door="v1",model="topics",status="499"}'
    wait_for(lambda: metric(server.url, counted) == 1)
    assert metric(server.url, "pipework_batch_texts_total") < 400
    assert server.stop() == 0


@pytest.mark.parametrize("replaced", repeated([True, False]))
def test_processes_end_with_the_main_process(run, start_server, replaced):
    server = start_server(run, workers=2)
    if replaced:
        (ended,) = processes(server)[0]
        ended.kill()
        wait_for(lambda: processes(server)[0] not in ([ended], []))
        wait_for(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
    children = psutil.Process(server.process.pid).children()
    assert len(children) == 3
    os.kill(server.process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def test_a_process_that_cannot_start_again_ends_the_server(run, launch, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    process = launch(copied, workers=2)
    assert process.first_line()
    (copied / "manifest.json").unlink()
    children = psutil.Process(process.pid).children()
    (engine,) = [child for child in children if child.name() == "pipe-engine-0"]
    engine.kill()
    done = process.finish(120)
    assert done.returncode == 1
    assert "manifest.json" in done.stderr
    assert not any(child.is_running() for child in children)


def test_a_wrong_run_is_reported_in_one_line(launch, tmp_path):
    done = launch(tmp_path, workers=2).finish()
    assert (done.returncode, done.stdout) == (1, "")
    expected = (
        f"{tmp_path} has no manifest.json and no models: neither a run folder nor a repository"
    )
    assert done.stderr.splitlines()[-1] == expected


def test_a_port_in_use_is_reported(workers, launch, run):
    port = int(workers.url.rpartition(":")[2])
    done = launch(run, port, workers=2).finish()
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr


def test_keys_are_required_by_all_processes(run, start_server):
    server = start_server(run, workers=2, PIPEWORK_API_KEYS="open-sesame")
    for _ in range(12):
        assert httpx.post(f"{server.url}{PREDICT}", json={"texts": ["goal"]}).status_code == 401
        headers = {"x-api-key": "open-sesame"}
        answer = httpx.post(f"{server.url}{PREDICT}", json={"texts": ["goal"]}, headers=headers)
        assert answer.status_code == 200
    assert server.stop() == 0


@pytest.mark.parametrize("workers", ["0", "-1", "two", "1.5", "", "257"])
def test_the_number_of_workers_is_checked(workers):
    message = f"--workers: expected a number from 1 to 256 or auto, found {workers!r}"
    with pytest.raises(ConfigError) as caught:
        worker_count(workers)
    assert str(caught.value) == message


def test_auto_depends_on_the_cpus_and_the_gpu(monkeypatch, tmp_path):
    module = "pipework.serve.workers.supervisor"
    monkeypatch.setattr(f"{module}.cuda_devices", partial(cuda_devices, tmp_path))
    for cpus, expected in ((1, 1), (2, 1), (8, 2), (32, 8)):
        monkeypatch.setattr(f"{module}.cpu_limit", lambda cpus=cpus: cpus)
        assert worker_count("auto") == expected
    (tmp_path / "nvidia0").touch()
    assert worker_count("auto") == 16
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert worker_count("auto") == 8
    assert worker_count("3") == 3


@pytest.fixture
def repository(shelf: Shelf, start_server: Callable[..., Server], engines: int) -> Iterator[Server]:
    """A server of a repository that clients may change."""
    shelf.add(1)
    settings = "models.control=true", "models.poll_s=0.1", f"queue.processes={engines}"
    server = start_server(shelf.folder, *settings, workers=2)
    yield server
    assert server.stop() == 0


def statuses_and_labels(url: str, requests: int = 12) -> set[tuple[int, str]]:
    """Return the outcomes of requests on several connections, which go to both processes."""
    found = set()
    with Client(url) as client:
        for _ in range(requests):
            status, answer = client.predict(["goal"])
            label = answer["predictions"][0]["label"] if status == 200 else answer["error"]
            found.add((status, label))
            client.reconnect()
    return found


def test_a_new_version_is_served_by_all_processes_without_a_lost_request(repository, shelf):
    outcomes, done = set(), threading.Event()

    def ask() -> None:
        while not done.is_set():
            outcomes.update(statuses_and_labels(repository.url, 2))

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        shelf.add(2)
        wait_for(lambda: statuses_and_labels(repository.url) == {(200, "sport-2")})
        done.set()
        for client in clients:
            client.result()
    assert outcomes <= {(200, "sport"), (200, "sport-2")}
    wait_for(lambda: 'version="1"' not in httpx.get(f"{repository.url}/metrics").text)


def test_a_client_loads_and_unloads_a_model_in_all_processes(repository):
    models = f"{repository.url}/v2/repository"
    for _ in range(3):
        assert httpx.post(f"{models}/models/topics/unload", json={}, timeout=60).status_code == 200
        unknown = "expected the name of a model: none"
        assert statuses_and_labels(repository.url) == {(404, unknown)}
        index = httpx.post(f"{models}/index", json={}).json()
        assert [(entry["name"], entry["reason"]) for entry in index] == [("topics", "unloaded")]
        assert httpx.post(f"{models}/models/topics/load", json={}, timeout=60).status_code == 200
        assert statuses_and_labels(repository.url) == {(200, "sport")}


def test_an_error_of_loading_is_that_of_a_single_process(repository, shelf):
    shelf.add(3, wrong=True)
    answer = httpx.post(f"{repository.url}/v2/repository/models/topics/load", json={}, timeout=60)
    assert answer.status_code == 400
    assert "model 'topics' cannot be loaded: version 3: " in answer.json()["error"]
    assert statuses_and_labels(repository.url) == {(200, "sport")}
    answer = httpx.post(f"{repository.url}/v2/repository/models/other/load", json={}, timeout=60)
    assert answer.status_code == 404


def test_a_version_survives_the_engine_process_that_loaded_it(repository, shelf):
    shelf.add(2)
    wait_for(lambda: statuses_and_labels(repository.url) == {(200, "sport-2")})
    killed = processes(repository)[0]
    for engine in killed:
        engine.kill()
    assert statuses_and_labels(repository.url) == {(200, "sport-2")}
    wait_for(lambda: metric(repository.url, "pipework_engine_deaths_total") == len(killed))


def test_many_clients_may_load_and_unload_at_once(repository):
    url = f"{repository.url}/v2/repository/models/topics"
    verbs = ["unload", "load"] * 16  # more than a process has threads for calls
    with ThreadPoolExecutor(len(verbs)) as pool:
        calls = [pool.submit(httpx.post, f"{url}/{verb}", json={}, timeout=120) for verb in verbs]
        assert {call.result().status_code for call in calls} == {200}
    # All engine processes have applied the calls in the same order.
    (entry,) = httpx.post(f"{repository.url}/v2/repository/index", json={}).json()
    found = entry["state"], entry.get("reason", "")
    assert found in {("READY", ""), ("UNAVAILABLE", "unloaded")}
    assert httpx.post(f"{url}/load", json={}, timeout=120).status_code == 200
    assert statuses_and_labels(repository.url) == {(200, "sport")}


def test_ctrl_c_ends_all_processes_with_0(run, start_server):
    for _ in range(3):
        server = start_server(run, "grace_s=3000", workers=2)
        children = psutil.Process(server.process.pid).children()
        for pid in (server.process.pid, *(child.pid for child in children)):
            os.kill(pid, signal.SIGINT)  # as a terminal does
        assert server.process.wait(120) == 0
        assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("processes", repeated([3, 1, 2]))
def test_a_signal_during_the_start_ends_the_server(run, launch, processes):
    for _ in range(2):
        process = launch(run, settings=["grace_s=3000"], workers=2)
        children = partial(psutil.Process(process.pid).children)
        wait_for(lambda children=children: len(children()) >= processes)
        started = children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not any(child.is_running() for child in started)


def test_one_of_two_servers_that_start_at_once_gets_the_port(run, launch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [launch(run, port, workers=2) for _ in range(2)]
    lines = [process.first_line() for process in started]
    assert sorted(map(bool, lines)) == [False, True]
    refused = started[lines.index("")].finish()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused.stderr


def test_a_front_process_that_cannot_open_a_version_ends_the_server(run, launch, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    process = launch(copied, workers=2)
    assert process.first_line()
    (copied / "tokenizer.json").unlink()
    fronts = [c for c in psutil.Process(process.pid).children() if "front" in c.name()]
    fronts[0].kill()
    done = process.finish(120)
    assert done.returncode == 1
    assert "tokenizer.json is missing" in done.stderr.splitlines()[-1]


def test_a_deleted_version_does_not_end_the_server_of_others(shelf, start_server):
    shelf.add(1)
    shelf.add(1, name="other")
    server = start_server(shelf.folder, "models.poll_s=0", workers=2)
    shutil.rmtree(shelf.folder / "topics" / "1")
    for front in processes(server)[1]:
        front.kill()
    answer = httpx.post(f"{server.url}{PREDICT}", json={"texts": ["goal"], "model": "other"})
    assert answer.status_code == 200
    assert server.stop() == 0


class BrokenEngine(Closeable):
    """An engine that fails in engine process 1 while a file exists."""

    def __init__(self, engine: Engine, broken: Path) -> None:
        self._engine, self._broken = engine, broken

    def infer(self, encodings: Sequence[Encoding]) -> np.ndarray:
        check_device(self._broken)
        return self._engine.infer(encodings)

    def close(self) -> None:
        self._engine.close()


def check_device(broken: Path) -> None:
    if broken.exists() and Path("/proc/self/comm").read_text() == "pipe-engine-1\n":
        raise RuntimeError("an illegal memory access was encountered")  # noqa: TRY003, EM101


def open_broken(broken: Path) -> None:
    class Opener(LocalOpener):
        def first(self, run, manifest, name, threads):
            record, engine = super().first(run, manifest, name, threads)
            return record, BrokenEngine(engine, broken)

        def again(self, run, manifest, name, threads):
            check_device(broken)
            return BrokenEngine(super().again(run, manifest, name, threads), broken)

    vars(open_models)["LocalOpener"] = Opener


@pytest.mark.thorough
def test_an_engine_process_without_an_engine_is_replaced(run, start_server, tmp_path):
    broken = tmp_path / "broken"
    before = partial(open_broken, broken)
    server = start_server(run, "queue.processes=2", before=before, workers=2)
    _, ended = sorted(processes(server)[0], key=psutil.Process.name)
    broken.touch()

    def replaced() -> bool:
        statuses_and_labels(server.url)
        return not ended.is_running()

    wait_for(replaced)
    broken.unlink()
    wait_for(lambda: len(processes(server)[0]) == 2)
    wait_for(lambda: metric(server.url, "pipework_engines_running") >= 2)
    assert statuses_and_labels(server.url) == {(200, "sport")}
    assert server.stop() == 0


class HarmfulEngine(Closeable):
    """An engine that ends its process when it computes a text of ten tokens or more."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def infer(self, encodings: Sequence[Encoding]) -> np.ndarray:
        if max(map(len, encodings)) >= 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._engine.infer(encodings)

    def close(self) -> None:
        self._engine.close()


class HarmfulOpener(LocalOpener):
    """Opens harmful engines."""

    def first(self, run, manifest, name, threads):
        record, engine = super().first(run, manifest, name, threads)
        return record, HarmfulEngine(engine)

    def again(self, run, manifest, name, threads):
        return HarmfulEngine(super().again(run, manifest, name, threads))


def open_harmful() -> None:
    vars(open_models)["LocalOpener"] = HarmfulOpener


def test_a_harmful_request_fails_and_leaves_the_others(run, launch, engines):
    settings = [f"queue.processes={engines}"]
    process = launch(run, settings=settings, before=open_harmful, workers=2)
    url = process.first_line().split()[0]
    done = threading.Event()

    def ask() -> set[tuple[int, str]]:
        outcomes = set()
        while not done.is_set():
            outcomes |= statuses_and_labels(url, 1)
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        body = {"texts": ["goal " * 12]}
        answer = httpx.post(f"{url}{PREDICT}", json=body, timeout=120)
        done.set()
        outcomes = set.union(*(client.result() for client in clients))
    error = "the engine process ended 3 times with this request"
    assert (answer.status_code, answer.json()["error"]) == (503, error)
    assert (200, "sport") in outcomes
    # A request that was in the same batch three times fails too.
    assert outcomes <= {(200, "sport"), (503, error)}
    assert statuses_and_labels(url) == {(200, "sport")}
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
