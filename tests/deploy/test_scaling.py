"""The scaling query of the chart, evaluated by Prometheus while a server is overloaded."""

import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import helm_python as helm
import httpx
import pytest
import yaml

from tests.serve.conftest import RUNNER, build_run

ROOT = Path(__file__).parents[2]
RISE_S = 15
CLIENTS = 64
NAME, NAMESPACE = "topics", "text"  # of the release whose chart is rendered
INTERVAL = "1s"
VALUES = {
    "model": {"claim": "models"},
    "autoscaling": {"kind": "keda"},
    "serviceMonitor": {"enabled": True, "interval": INTERVAL},
}
pytestmark = pytest.mark.slow


def trigger_of_chart() -> Mapping[str, Any]:
    """The query and the threshold of the ScaledObject of the chart."""
    with helm.Chart.load(str(ROOT / "deploy/chart")) as chart:
        files = chart.render(VALUES, name=NAME, namespace=NAMESPACE)
    resources = (found for text in files.values() for found in yaml.safe_load_all(text) if found)
    scaled = next(found["spec"] for found in resources if found["kind"] == "ScaledObject")
    return scaled["triggers"][0]["metadata"]


def evaluate(url: str, query: str) -> float:
    """The value of a query; 0 if there is no series yet."""
    response = httpx.get(f"{url}/api/v1/query", params={"query": query})
    response.raise_for_status()
    return sum(float(series["value"][1]) for series in response.json()["data"]["result"])


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
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is absent: apt-get install prometheus")
    target = {"targets": [server], "labels": {"namespace": NAMESPACE, "service": NAME}}
    config = {
        "global": {"scrape_interval": INTERVAL},
        "scrape_configs": [{"job_name": "pipework", "static_configs": [target]}],
    }
    with TemporaryDirectory() as name:
        path = Path(name) / "config.yml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        words = [program, f"--config.file={path}", f"--storage.tsdb.path={path.parent / 'data'}"]
        words.append("--web.listen-address=127.0.0.1:0")
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "Listening on" in line)
            port = line.rpartition(":")[2].strip().strip('"')
            yield f"http://127.0.0.1:{port}"
            process.kill()


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
    trigger = trigger_of_chart()
    threshold = float(trigger["threshold"])

    def work_s() -> float:
        return evaluate(prometheus, trigger["query"])

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
