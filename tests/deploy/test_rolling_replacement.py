"""Replacing all pods of the chart or of KServe under load loses no request, and planted faults do.

The pods run the image if it can be built here, otherwise the server of this checkout.
"""

import copy
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pipework.client import Client
from pipework.errors import PipeError
from tests.deploy.container import Container, Running, pod_container
from tests.deploy.image import ROOT, absent_component
from tests.deploy.kserve import kserve_deployment, kserve_resource
from tests.deploy.kubelet import Deployment, Manifest, StartContainer, cluster
from tests.deploy.test_manifests import CLAIM, render_values
from tests.serve.conftest import LABELS, WORDS, build_run

REQUESTS, KSERVE_REQUESTS = 20_000, 5_000
CLIENTS = 8
REPLICAS, REPLACEMENTS = 2, 2
TIMEOUT_S, ROLL_OUT_S, STUCK_S = 600, 240, 20
LONG_TEXTS = 1000  # of a request that is computed for seconds
MODELS = "/mnt/models"
SCHEMES = ("http", "grpc")  # in the order of the ports
pytestmark = pytest.mark.slow


def readable_run(factory: pytest.TempPathFactory, layers: int) -> Path:
    """Build a run that other users can read."""
    run = build_run(factory, layers=layers)
    for path in (run, *run.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return run


@pytest.fixture(scope="module")
def fast_run(tmp_path_factory) -> Path:
    return readable_run(tmp_path_factory, layers=0)


@pytest.fixture(scope="module")
def slow_run(tmp_path_factory) -> Path:
    """A model that needs about a millisecond per text."""
    return readable_run(tmp_path_factory, layers=60)


@pytest.fixture(scope="module")
def start_on(request, tmp_path_factory) -> Callable[[Path], StartContainer]:
    """A function (run) that returns how pods start their container with the run as their volume."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("no permission to create network namespaces, or ip is absent (iproute2)")
    image = None if absent_component() else request.getfixturevalue("image")
    folder = tmp_path_factory.mktemp("pods")

    def process(run: Path, spec: Manifest, network: str) -> Running:
        (container,) = spec["containers"]
        arguments = [word.replace(MODELS, str(run)) for word in container["args"]]
        command = ["ip", "netns", "exec", network, sys.executable, "-P", "-m", "pipework.cli"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return Running([*command, *arguments], folder / network, cwd=ROOT, env=environment)

    def contained(run: Path, spec: Manifest, network: str) -> Running:
        assert image is not None
        volumes = {"models": run, "tmp": None}
        return Container(pod_container(spec, image, volumes, network=network), folder / network)

    start = process if image is None else contained
    return lambda run: lambda spec, network: start(run, spec, network)


def deployment(**values: Any) -> dict[str, Any]:
    """Return the Deployment of the chart with several replicas."""
    resources = render_values({**CLAIM, "replicas": REPLICAS, "publicGrpc": True, **values})
    (found,) = [resource for resource in resources if resource["kind"] == "Deployment"]
    return copy.deepcopy(found)


@dataclass
class Load:
    """Requests of clients, each of which keeps its connection.

    Attributes:
        answers: right answers.
        errors: wrong answers and errors, by message.
        enough: ends the clients.
        texts: texts of a request.
    """

    answers: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    enough: Event = field(default_factory=Event)
    texts: int = 1

    def send(self, url: str, number: int) -> None:
        """Send requests until `enough`."""
        with Client(url, timeout_s=60) as client:
            while not self.enough.is_set():
                label = number % len(LABELS)
                words = WORDS[4 + 3 * label : 7 + 3 * label]
                try:
                    found = client.predict([" ".join(words)] * self.texts)
                except PipeError as error:
                    self.errors[str(error)] += 1
                    continue
                labels = [prediction.label for prediction in found]
                if labels == [LABELS[label]] * self.texts:
                    self.answers += 1
                else:
                    self.errors[f"wrong: {labels}"] += 1
                number += 1


@contextmanager
def load(urls: list[str], **options: Any) -> Iterator[Load]:
    """Send requests from clients during the context."""
    running = Load(**options)
    with ThreadPoolExecutor(CLIENTS) as threads:
        futures = [
            threads.submit(running.send, urls[number % len(urls)], number)
            for number in range(CLIENTS)
        ]
        try:
            yield running
        finally:
            running.enough.set()
        for future in futures:
            future.result()


@contextmanager
def serving(start: StartContainer, manifest: Manifest) -> Iterator[tuple[Deployment, list[str]]]:
    """Run a Deployment until its service answers; yields it and the URL of each of its ports."""
    with cluster(manifest, start) as (pods, ports):
        pods.roll_out(ROLL_OUT_S)
        urls = [
            f"{scheme}://127.0.0.1:{port}" for scheme, port in zip(SCHEMES, ports, strict=False)
        ]
        for url in urls:
            with Client(url) as client:
                wait_for(client.ready)
        yield pods, urls


def wait_for(condition: Callable[[], bool]) -> None:
    ended_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < ended_s
        time.sleep(0.1)


def test_no_request_is_lost_when_all_pods_are_replaced_twice(start_on, fast_run):
    with serving(start_on(fast_run), deployment()) as (pods, urls):
        with load(urls) as requests:
            for _ in range(REPLACEMENTS):
                pods.roll_out(ROLL_OUT_S)
            wait_for(lambda: requests.answers >= REQUESTS)
        events = pods.close()
    assert requests.errors == {}
    assert requests.answers >= REQUESTS
    assert events == []
    assert len(pods.deleted) == REPLICAS * (1 + REPLACEMENTS)


def test_long_requests_are_finished_within_the_grace_period_and_lost_if_it_is_short(
    start_on, slow_run
):
    short = deployment()
    spec = short["spec"]["template"]["spec"]
    hook_s = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    spec["terminationGracePeriodSeconds"] = hook_s + 1
    with (
        serving(start_on(slow_run), deployment(graceSeconds=120)) as (pods, urls),
        load(urls, texts=LONG_TEXTS) as requests,
    ):
        pods.apply(short)
        pods.roll_out(ROLL_OUT_S)
        assert pods.wait() == []
        assert requests.errors == {}
        pods.roll_out(ROLL_OUT_S)
        events = pods.wait()
    assert set(events) == {"killed after the grace period"}
    assert requests.errors.total() > 0
    assert not [error for error in requests.errors if error.startswith("wrong")]


def test_without_seconds_before_the_stop_requests_are_lost(start_on, fast_run):
    manifest = deployment(preStopSeconds=0)
    with serving(start_on(fast_run), manifest) as (pods, urls), load(urls) as requests:
        pods.roll_out(ROLL_OUT_S)
    assert requests.errors.total() > 0


def test_no_request_is_lost_when_the_pods_of_kserve_are_replaced(start_on, fast_run):
    manifest = kserve_deployment(kserve_resource("service"), REPLICAS)
    with serving(start_on(fast_run), manifest) as (pods, urls):
        with load(urls) as requests:
            pods.roll_out(ROLL_OUT_S)
            wait_for(lambda: requests.answers >= KSERVE_REQUESTS)
        events = pods.close()
    assert (requests.errors, events) == ({}, [])
    assert len(pods.deleted) == REPLICAS * 2


def test_without_the_hook_of_the_inference_service_requests_are_lost(start_on, fast_run):
    service = kserve_resource("service")
    del service["spec"]["predictor"]["model"]["lifecycle"]
    manifest = kserve_deployment(service, REPLICAS)
    with serving(start_on(fast_run), manifest) as (pods, urls), load(urls) as requests:
        pods.roll_out(ROLL_OUT_S)
    assert requests.errors.total() > 0


def test_pods_that_do_not_become_ready_replace_none(start_on, fast_run):
    wrong = deployment()
    (container,) = wrong["spec"]["template"]["spec"]["containers"]
    container["readinessProbe"]["httpGet"]["path"] = "/ready"
    with serving(start_on(fast_run), deployment()) as (pods, urls), load(urls) as requests:
        pods.apply(wrong)
        with pytest.raises(TimeoutError, match=f"{REPLICAS} old pods remain"):
            pods.roll_out(STUCK_S)
    assert requests.errors == {}
    assert requests.answers > 0
