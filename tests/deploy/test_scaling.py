"""The scaling query of the chart, evaluated by Prometheus while a server is overloaded."""

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import pytest

from pipework.benchmarks.studies import scaling
from tests.serve.conftest import RUNNER, build_run

ROOT = Path(__file__).parents[2]
RISE_S = 15
CLIENTS = 64
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of a server that computes about a thousand texts per second."""
    run = build_run(tmp_path_factory, layers=60)
    command = [sys.executable, "-c", RUNNER, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        url, *_ = process.stdout.readline().split()
        yield url.removeprefix("http://")
        process.kill()


@pytest.fixture
def prometheus(server: str) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the server each second, with the labels of a pod."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is absent: apt-get install prometheus")
    with scaling.prometheus(server) as url:
        yield url


@contextmanager
def overload(server: str) -> Iterator[None]:
    """Send requests of many texts from many clients."""
    ended = Event()

    def client() -> None:
        with httpx.Client(timeout=60) as http:
            while not ended.is_set():
                http.post(f"http://{server}/v1/predict", json={"texts": ["goal team match"] * 32})

    with ThreadPoolExecutor(CLIENTS) as threads:
        for _ in range(CLIENTS):
            threads.submit(client)
        try:
            yield
        finally:
            ended.set()


def test_the_query_rises_with_overload_and_falls_after_it(server, prometheus):
    trigger = scaling.scaled_object()["triggers"][0]["metadata"]
    threshold = float(trigger["threshold"])

    def work_s() -> float:
        return scaling.evaluate(prometheus, trigger["query"])

    def wait(condition: Callable[[], bool]) -> float:
        started_s = time.monotonic()
        while not condition():
            assert time.monotonic() - started_s < 60, work_s()
            time.sleep(0.2)
        return time.monotonic() - started_s

    httpx.post(f"http://{server}/v1/predict", json={"texts": ["goal"] * 64})
    wait(lambda: httpx.get(f"{prometheus}/api/v1/query?query=up").json()["data"]["result"] != [])
    assert work_s() < threshold
    with overload(server):
        assert wait(lambda: work_s() > threshold) < RISE_S
        replicas = math.ceil(work_s() / threshold)  # as the HorizontalPodAutoscaler computes it
        assert replicas > 1
    assert wait(lambda: work_s() < threshold / 2) < RISE_S
