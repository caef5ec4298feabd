"""Servers of several processes, as `pipe serve --workers` starts them."""

import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from pipework.client import Client as PipeClient
from pipework.closeable import Closeable
from pipework.errors import ConfigError
from pipework.machine import cuda_devices
from pipework.scoring.evaluation import Engine
from pipework.serve.engines import open_first
from pipework.serve.http.connection import LINGER_S
from pipework.serve.models import open_models
from pipework.serve.models.registry import Change
from pipework.serve.workers.child_process import STOPPED_S
from pipework.serve.workers.group import WorkerFolder
from pipework.serve.workers.supervisor import private_folder, worker_count
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from tests.commands import ForkedProcess
from tests.repetitions import repeated
from tests.serve.conftest import Server, Shelf
from tests.serve.servers import wait_while_it_exists, wrap_engines
from tests.serve.test_run import metric, wait_for

TEXTS = [" ".join(words) for words in (["rain"] * 3, ["goal", "team"], ["bank"] * 40, ["match"])]
PREDICT = "/v1/predict"
CLIENTS, WORKERS, ENDED = 6, 2, 6
TOLERANCE = 1e-5


def processes(server: Server) -> list[psutil.Process]:
    """Return the workers, by number."""
    named = {}
    for child in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            named[child.name()] = child
    return [named[name] for name in sorted(named) if name.startswith("pipe-worker-")]


class Client(Closeable):
    """Sends requests over a connection, and connects again when it is lost."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection = HTTPConnection(self._address, timeout=120)
        self._answered_s = 0.0

    @property
    def kept(self) -> bool:
        """Whether a worker that stops still answers on the connection, which it has accepted."""
        return time.monotonic() - self._answered_s < LINGER_S

    def predict(self, texts: list[str]) -> tuple[int, dict]:
        """Return the status and the response; a lost connection raises an error."""
        try:
            body = json.dumps({"texts": texts})
            self._connection.request("POST", PREDICT, body, {"content-type": "application/json"})
            response = self._connection.getresponse()
            answer = response.status, json.loads(response.read())
        except (OSError, HTTPException):
            self.reconnect()
            raise
        self._answered_s = time.monotonic()
        return answer

    def reconnect(self) -> None:
        self._connection.close()
        self._connection = HTTPConnection(self._address, timeout=120)
        self._answered_s = 0.0

    def close(self) -> None:
        self._connection.close()


class Load:
    """Clients that compare each answer until there are enough.

    Attributes:
        killing: whether processes are still to be killed, so that there are never enough.
        answers: number of answers.
        texts: number of their texts.
        lost: number of lost connections.
        cut: number of those that a worker had accepted and used within `LINGER_S`.
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
        self.lost = self.cut = 0
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
            kept = client.kept
            try:
                status, answer = client.predict(texts)
            except (OSError, HTTPException):
                with self._lock:
                    self.lost += 1
                    self.cut += kept
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


@pytest.fixture(scope="module")
def workers(run: Path, start_server: Callable[..., Server]) -> Server:
    """A server of two workers. Tests may end these."""
    return start_server(run, workers=2)


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


def test_metrics_are_those_of_all_processes(run, start_server):
    workers, count = start_server(run, workers=2), 150
    with Client(workers.url) as client:
        for _ in range(count):
            assert client.predict(["goal", "rain"])[0] == 200
            client.reconnect()  # to either process
    # A worker writes its counts every second, and either answers.
    wait_for(lambda: counted_requests(workers) == count)
    for name in ("texts", "batch_texts"):
        wait_for(lambda name=name: metric(workers.url, f"pipework_{name}_total") == 2 * count)

    def status() -> dict:
        return httpx.get(f"{workers.url}/v1/status").json()

    wait_for(lambda: status()["models"][0]["versions"][0]["totals"]["texts"] == 2 * count)
    assert status()["recent"]["window_s"] == 5
    assert metric(workers.url, "process_resident_memory_bytes") > 3 * 2**20
    assert workers.stop() == 0


def counted_requests(server: Server) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("pipework_requests_total")]
    return sum(float(line.split()[-1]) for line in counts)


def serving_workers(server: Server, ended: Collection[int] = ()) -> int:
    """Return how many workers serve; 0 while a worker has got a signal or has no replacement."""
    running = {worker.pid for worker in processes(server)}
    if len(running) < WORKERS or running & set(ended):
        return 0
    try:
        return round(metric(server.url, "pipework_engines_running"))
    except httpx.TransportError:  # a connection to a worker that was killed
        return 0


@pytest.mark.parametrize("answers", [1_500, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_answer_is_wrong_while_workers_end(run, start_server, number, answers):
    workers = start_server(run, workers=2)
    load = Load(workers.url, answers)
    choose, ended = random.Random(5), set[int]()
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(load.run, seed) for seed in range(CLIENTS)]
        try:
            while len(ended) < ENDED and not load.done.wait(choose.uniform(0.2, 0.6)):
                if serving_workers(workers, ended) == WORKERS:  # else no worker would listen
                    worker = processes(workers)[len(ended) % WORKERS]
                    worker.send_signal(number)
                    ended.add(worker.pid)
        finally:  # else the clients would go on after an error
            load.killing = False
        for client in clients:
            client.result()
    assert load.wrong == []
    assert len(ended) == ENDED
    # A connection of a killed worker is lost, and so is the next one if the kernel still puts it
    # into the queue of that worker. Other signals let a worker answer on what it has accepted, but
    # not on a connection that the kernel establishes between its last accept and its close.
    killed = number is signal.SIGKILL
    assert load.lost <= (2 * CLIENTS * ENDED if killed else ENDED)
    assert killed or load.cut == 0
    wait_for(lambda: serving_workers(workers, ended) == WORKERS)
    assert httpx.get(f"{workers.url}/readyz").status_code == 200
    if not killed:
        wait_for(lambda: counted_requests(workers) == load.answers)
    # A worker writes its counts every second, so that a killed one loses those of the last.
    assert counted_requests(workers) <= load.answers + load.lost
    crashes = ENDED if killed else 0
    assert metric(workers.url, "pipework_engine_deaths_total") == crashes
    assert workers.stop() == 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_with_retries_gets_all_answers_while_workers_are_killed(workers, protocol):
    stopping = threading.Event()
    url = workers.url if protocol == "http" else f"grpc://{workers.grpc}"

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
                for worker in processes(workers):
                    worker.kill()
        finally:
            stopping.set()
        assert min(client.result() for client in clients) > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_answers_all_accepted_requests_and_exits_with_0(slow_run, start_server, workers):
    # Room for all of them in one worker, which may get every connection.
    server = start_server(slow_run, "grace_s=300", "queue.tokens=400000", workers=workers)
    large = {"texts": ["rain sun wind goal team match bank rate stock " * 3] * 200}
    accepted = "pipework_unanswered_requests"
    with ThreadPoolExecutor(4) as pool:
        requests = [
            pool.submit(httpx.post, f"{server.url}{PREDICT}", json=large, timeout=300)
            for _ in range(4)
        ]
        # A fast machine has answered some of them before the last is counted.
        wait_for(lambda: metric(server.url, accepted) + sum(r.done() for r in requests) >= 4)
        children = psutil.Process(server.process.pid).children()
        assert server.stop() == 0
        answers = [future.result() for future in requests]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("replaced", repeated([True, False]))
def test_processes_end_with_the_main_process(run, start_server, replaced):
    server = start_server(run, workers=2)
    if replaced:
        ended, _ = processes(server)
        ended.kill()
        wait_for(lambda: serving_workers(server, {ended.pid}) == WORKERS)
    children = psutil.Process(server.process.pid).children()
    assert len(children) == WORKERS
    os.kill(server.process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


def open_failing(broken: Path) -> None:
    def first(*arguments, **options):
        check_device(broken, 0)
        with suppress(RuntimeError):
            check_device(broken, 1)
            return open_first(*arguments, **options)
        threading.Event().wait(5)  # worker 0 fails again before this worker serves
        return open_first(*arguments, **options)

    vars(open_models)["open_first"] = first


def test_a_worker_that_cannot_start_is_tried_again_while_the_others_answer(
    run, start_server, tmp_path
):
    broken = tmp_path / "broken"
    server = start_server(run, before=partial(open_failing, broken), workers=2)
    process, url = server.process, server.url
    first, second = processes(server)
    broken.touch()
    first.kill()
    first.wait(60)

    def readiness() -> str:
        assert statuses_and_labels(url, 2) == {(200, "sport")}
        return httpx.get(f"{url}/readyz").json()["status"]

    wait_for(lambda: readiness() == "ready; worker 0 failed to start 3 times")
    second.kill()  # it can be started again
    second.wait(60)
    wait_for(lambda: others_answer(url))
    broken.unlink()
    wait_for(lambda: serving_workers(server) == WORKERS)
    assert {readiness() for _ in range(8)} == {"ready"}
    process.send_signal(signal.SIGTERM)
    done = process.finish(120)
    assert done.returncode == 0
    for failures, pause_s in (("1 time", 1), ("3 times", 4)):
        line = f"worker 0 failed to start {failures}"
        assert f"{line}\nanother worker 0 is started in {pause_s} s" in done.stderr


def test_only_errors_of_the_temporary_folder_are_reported_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    Path(tempfile.tempdir).mkdir()
    message = r"^the files of the workers cannot be created in a temporary folder: AF_UNIX path"
    with pytest.raises(ConfigError, match=message) as caught, private_folder():
        pass
    assert caught.value.hint == "set TMPDIR to a writable folder with free space and a short path"
    monkeypatch.undo()
    with pytest.raises(PermissionError, match="of the server"), private_folder() as folder:
        raise PermissionError(errno.EACCES, "of the server")
    assert not folder.exists()


def test_a_change_that_cannot_be_recorded_on_a_full_disk_is_one_line(tmp_path):
    files = WorkerFolder(folder=tmp_path, workers=2)
    (tmp_path / f"unloaded.json.{os.getpid()}").symlink_to("/dev/full")
    error = files.changed(Change.UNLOAD, "topics")
    message = "model topics: a worker that is started later cannot know the change: No space left"
    assert str(error).startswith(message)
    assert error.hint == f"free space in {tmp_path}, and send the request again"
    assert files.changed(Change.UNLOAD, "topics") is None
    assert files.unloaded() == {"topics"}


def test_a_stopped_worker_is_replaced_within_5_s(run, start_server):
    server = start_server(run, workers=2)
    main = psutil.Process(server.process.pid)
    # A pause of the whole server, as of a container, is not the fault of a worker.
    paused = [main, *processes(server)]
    for process in paused:
        process.suspend()
    threading.Event().wait(STOPPED_S + 1)
    for process in paused:
        process.resume()
        threading.Event().wait(0.2)
    threading.Event().wait(1)
    assert [main, *processes(server)] == paused
    stopped, other = paused[1:]
    stopped.suspend()
    started_s = time.monotonic()
    wait_for(lambda: not stopped.is_running())
    assert time.monotonic() - started_s < 5
    wait_for(lambda: others_answer(server.url))  # the other worker has all new connections
    wait_for(lambda: serving_workers(server) == WORKERS)
    assert other.is_running()
    assert server.stop() == 0


def stuck_opening(stuck: Path, worker: str) -> None:
    def opened(*arguments, **options):
        while stuck.exists() and Path("/proc/self/comm").read_text().startswith(worker):
            threading.Event().wait(0.1)
        return open_first(*arguments, **options)

    vars(open_models)["open_first"] = opened


@pytest.mark.parametrize(("workers", "late"), [(2, "worker 1"), (1, "process {pid}")])
def test_an_error_of_loading_names_the_process_that_does_not_finish(
    shelf, launch, tmp_path, workers, late
):
    shelf.add(1)
    stuck = tmp_path / "stuck"
    settings = ["models.control=true", "models.poll_s=0", "models.change_s=1", "grace_s=1"]
    before = partial(stuck_opening, stuck, "pipe-worker-1" if workers == 2 else "")
    process = launch(shelf.folder, settings=settings, before=before, workers=workers)
    url = process.first_line().split()[0]
    stuck.touch()
    shelf.add(2)
    answer = httpx.post(f"{url}/v2/repository/models/topics/load", json={}, timeout=30)
    assert answer.status_code == 503
    expected = "load of model 'topics' is not finished after 1 s by: " + late
    assert expected.format(pid=process.pid) in answer.json()["error"]
    stuck.unlink()
    wait_for(lambda: statuses_and_labels(url) == {(200, "sport-2")})
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_server_without_a_worker_that_can_start_ends(run, launch, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    process = launch(copied, workers=2)
    assert process.first_line()
    (copied / "manifest.json").unlink()
    children = psutil.Process(process.pid).children()
    for child in children:
        child.kill()
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


def test_auto_is_a_worker_per_gpu_or_numa_node(monkeypatch, tmp_path):
    module = "pipework.serve.workers.child_process"
    monkeypatch.setattr(f"{module}.cuda_devices", partial(cuda_devices, tmp_path))
    monkeypatch.setattr(f"{module}.cpu_limit", lambda: 4)
    for nodes in ([{0, 1, 2, 3}], [{0, 1}, {2, 3}]):
        monkeypatch.setattr(f"{module}.numa_nodes", lambda nodes=nodes: list(map(frozenset, nodes)))
        assert worker_count("auto") == len(nodes)
    for name in ("nvidia0", "nvidia1", "nvidia2"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_count("auto") == 3
    assert worker_count("5") == 5


@pytest.fixture
def repository(shelf: Shelf, start_server: Callable[..., Server]) -> Iterator[Server]:
    """A server of a repository that clients may change."""
    shelf.add(1)
    settings = "models.control=true", "models.poll_s=0.1"
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


def test_a_replaced_worker_has_the_models_that_clients_have_loaded(repository):
    model = f"{repository.url}/v2/repository/models/topics"
    unknown = (404, "expected the name of a model: none")
    for verb, outcome in (("unload", unknown), ("load", (200, "sport"))):
        ended = processes(repository)[0]
        ended.kill()
        ended.wait(60)  # another one is being started, and may miss the call
        assert httpx.post(f"{model}/{verb}", json={}, timeout=60).status_code == 200
        wait_for(lambda ended=ended: ended not in processes(repository))
        wait_for(lambda: len(processes(repository)) == WORKERS)
        wait_for(lambda outcome=outcome: statuses_and_labels(repository.url) == {outcome})
        for _ in range(3):
            assert statuses_and_labels(repository.url) == {outcome}


def test_many_clients_may_load_and_unload_at_once(repository):
    url = f"{repository.url}/v2/repository/models/topics"
    verbs = ["unload", "load"] * 16  # more than a process has threads for calls
    with ThreadPoolExecutor(len(verbs)) as pool:
        calls = [pool.submit(httpx.post, f"{url}/{verb}", json={}, timeout=120) for verb in verbs]
        assert {call.result().status_code for call in calls} == {200}
    # All workers have applied the calls in the same order.
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
        finished = server.process.finish()
        assert (finished.returncode, "Traceback" in finished.stderr) == (0, False)
        assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("processes", repeated([2, 1]))
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


def test_a_deleted_version_does_not_end_the_server_of_others(shelf, start_server):
    shelf.add(1)
    shelf.add(1, name="other")
    server = start_server(shelf.folder, "models.poll_s=0", workers=2)
    shutil.rmtree(shelf.folder / "topics" / "1")
    for worker in processes(server):
        worker.kill()
    wait_for(lambda: len(processes(server)) == WORKERS)
    wait_for(lambda: serving_workers(server) == WORKERS)
    answer = httpx.post(f"{server.url}{PREDICT}", json={"texts": ["goal"], "model": "other"})
    assert answer.status_code == 200
    assert server.stop() == 0


def check_device(broken: Path, worker: int = 1) -> None:
    if broken.exists() and Path("/proc/self/comm").read_text() == f"pipe-worker-{worker}\n":
        raise RuntimeError("an illegal memory access was encountered")  # noqa: TRY003, EM101


def open_broken(broken: Path) -> None:
    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        check_device(broken)
        return engine.infer(encodings)

    wrap_engines(infer)
    proven = vars(open_models)["open_proven"]

    def again(*arguments, **options):
        check_device(broken)
        return proven(*arguments, **options)

    vars(open_models)["open_proven"] = again


@pytest.mark.thorough
def test_a_worker_without_an_engine_is_replaced(run, start_server, tmp_path):
    broken = tmp_path / "broken"
    before = partial(open_broken, broken)
    server = start_server(run, before=before, workers=2)
    _, ended = processes(server)
    broken.touch()

    def replaced() -> bool:
        with suppress(OSError, HTTPException):
            statuses_and_labels(server.url)
        return not ended.is_running()

    wait_for(replaced)
    broken.unlink()
    wait_for(lambda: serving_workers(server) == WORKERS)
    assert statuses_and_labels(server.url) == {(200, "sport")}
    assert server.stop() == 0


def test_a_worker_with_a_stuck_engine_is_replaced_and_the_others_answer(
    run, start_server, tmp_path
):
    stuck = tmp_path / "stuck"
    settings = ["queue.stuck_s=1", "queue.instances=1"]
    server = start_server(
        run, *settings, before=partial(wait_while_it_exists, stuck, "pipe-worker-0"), workers=2
    )
    process, url = server.process, server.url
    first, second = processes(server)
    answered, done = Counter[int](), threading.Event()

    def send() -> None:
        with Client(url) as client:
            while not done.is_set():
                client.reconnect()
                with suppress(OSError, HTTPException):
                    answered[client.predict(["goal"])[0]] += 1

    stuck.touch()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(send)
        started_s = time.monotonic()
        wait_for(lambda: not first.is_running())
        seconds = time.monotonic() - started_s
        stuck.unlink()
        wait_for(lambda: len(processes(server)) == WORKERS)
        done.set()
    assert seconds < 10
    assert second.is_running()
    assert answered[200] > 0
    assert set(answered) == {200}
    assert statuses_and_labels(url) == {(200, "sport")}
    process.send_signal(signal.SIGTERM)
    assert "is stuck: a batch has taken 2." in process.finish(120).stderr


def others_answer(url: str) -> bool:
    """Whether all requests succeed: a few are lost that the kernel still gives to a dead worker."""
    try:
        return statuses_and_labels(url) == {(200, "sport")}
    except OSError:
        return False


def set_temporary_folder(path: Path) -> None:
    tempfile.tempdir = str(path)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def small_folder(short_path: Path) -> Iterator[Path]:
    """A folder on a file system of 64 KiB."""
    if os.geteuid():
        pytest.skip("a file system needs root")
    if shutil.which("mount") is None:
        pytest.skip("mount is absent")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", short_path], check=True)
    yield short_path
    subprocess.run(["umount", "--lazy", short_path], check=True)


def test_a_full_temporary_folder_ends_no_worker_and_none_is_lost(run, start_server, small_folder):
    server = start_server(run, workers=2, before=partial(set_temporary_folder, small_folder))
    process, url = server.process, server.url
    with suppress(OSError), (small_folder / "fill").open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    first, second = processes(server)
    first.kill()
    wait_for(lambda: serving_workers(server, {first.pid}) == WORKERS)
    assert second.is_running()
    assert statuses_and_labels(url, 20) == {(200, "sport")}
    assert "pipework_requests_total" in httpx.get(f"{url}/metrics").text
    process.send_signal(signal.SIGTERM)
    done = process.finish(120)
    assert done.returncode == 0
    assert "the counts of workers cannot be written" in done.stderr


def test_the_folder_of_a_killed_server_is_deleted_by_the_next(run, launch, short_path):
    def start() -> tuple[ForkedProcess, str, Path]:
        before = {*short_path.iterdir()}
        process = launch(run, workers=2, before=partial(set_temporary_folder, short_path))
        url = process.first_line().split()[0]
        (folder,) = {*short_path.iterdir()} - before
        os.utime(folder / "alive", (0, 0))
        return process, url, folder

    killed, _, old = start()
    _, url, kept = start()
    children = psutil.Process(killed.pid).children()
    os.kill(killed.pid, signal.SIGKILL)
    psutil.wait_procs(children, timeout=60)
    assert old.exists()
    start()
    assert not old.exists()
    assert kept.exists()
    assert statuses_and_labels(url, 2) == {(200, "sport")}


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_to_the_main_process_stops_the_server(run, start_server, workers):
    server = start_server(run, workers=workers)
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(60) == 0
