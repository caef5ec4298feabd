"""A server under load: each response has the checkpoint's scores, and no request is lost.

Versions are switched, an engine crashes, clients disconnect, and finally SIGTERM is sent.
"""

import asyncio
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipework.data.examples import Example
from pipework.export.config import ExportSettings, TritonSettings
from pipework.export.run import export
from pipework.export.triton.model_repository import EngineChoice, add_version
from pipework.machine import computes_bf16
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.text.encoding import open_encoder
from pipework.train.model.checkpoint_engine import open_reference
from tests.repetitions import repeated

LOWEST = Precision.BF16 if computes_bf16() else Precision.FP32
PACKED = Variant(format="openvino", precision=LOWEST, layout=Layout.PACKED)
CLIENTS, DISCONNECTS = 12, 80
TOLERANCE = 0.02  # of a probability, for bf16
TIMEOUT_S = 60
TEXTS = [
    f"{first} {middle} {last}"
    for first in ("The match", "Shares of the bank", "A new phone", "今天的电影")
    for middle in ("went to extra time", "fell again", "", "was seen by " + "many " * 30)
    for last in ("on Sunday", "in the rain, they said")
]
# Does the same as `pipe serve`. SIGUSR1 makes an engine's thread crash with its next batch; SIGUSR2
# pauses the engines before their next batch, and a second SIGUSR2 resumes them.
SERVER = """
import faulthandler, signal, sys
from pathlib import Path
from threading import Event
from pipework.serve.config import RepositorySettings, QueueSettings, ServeSettings
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.run import serve
from pipework.serve.sockets import ListenAddress

faulthandler.enable()
start, killed, free = CollatedEngine.start, [], Event()
free.set()

def crashing_start(engine, encodings):
    free.wait()
    if killed:
        killed.clear()
        raise SystemExit
    return start(engine, encodings)

CollatedEngine.start = crashing_start
signal.signal(signal.SIGUSR1, lambda *_: killed.append(True))
signal.signal(signal.SIGUSR2, lambda *_: free.clear() if free.is_set() else free.set())
instances, batch_tokens = map(int, sys.argv[2:])
serve(
    Path(sys.argv[1]),
    ServeSettings(
        models=RepositorySettings(poll_s=0.1),
        queue=QueueSettings(instances=instances, batch_tokens=batch_tokens, tokens=10_000_000),
    ),
    address=ListenAddress(port=0, grpc_port=0),
    ready=lambda line: print(line, flush=True),
)
"""


@dataclass(kw_only=True)
class Observed:
    """Observations of the clients; once `last` is set, they stop sending."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    last: bool = False
    late: int = 0
    disconnected: float = 0
    batch_tokens: float = 0


@pytest.fixture(scope="module")
def repository(exported_run, tmp_path_factory):
    """Version 1 with the ONNX engine, version 2 with a packed OpenVINO engine."""
    both = tmp_path_factory.mktemp("runs") / "both"
    shutil.copytree(exported_run, both)
    export(both, NullProgress(), [PACKED], settings=ExportSettings(speed_s=0, dev_rows=40))
    folder = tmp_path_factory.mktemp("served") / "repository"
    for run, layout in ((exported_run, None), (both, Layout.PACKED)):
        add_version(
            run, folder, TritonSettings(name="text"), EngineChoice(layout=layout), NullProgress()
        )
    return folder


@pytest.fixture(scope="module")
def expected(exported_run):
    """The checkpoint's probabilities by text, and the labels in their order."""
    manifest = read_manifest(exported_run)
    encodings = open_encoder(exported_run, manifest).encode([Example(text=text) for text in TEXTS])
    with open_reference(exported_run, manifest) as checkpoint:
        scores_NC = manifest.task.probabilities(checkpoint.infer(encodings).values)
    return manifest.task.labels, dict(zip(TEXTS, scores_NC, strict=True))


async def client(session, url, expected, observed, seed):
    """Send requests until the last one, and compare each response with the checkpoint."""
    labels, scores = expected
    choose = random.Random(seed)
    while not (observed.last or observed.wrong):
        texts = choose.choices(TEXTS, k=choose.choice([1, 1, 2, 8]))
        try:
            async with session.post(f"{url}/v1/predict", json={"texts": texts}) as answer:
                content = await answer.json()
        except (aiohttp.ClientError, OSError) as error:
            observed.wrong.append(repr(error))
            return
        if answer.status != 200:
            observed.wrong.append(f"{answer.status}: {content}")
            return
        observed.answers += 1
        observed.versions.add(content["version"])
        for text, prediction in zip(texts, content["predictions"], strict=True):
            scores_C = np.array([prediction["scores"][label] for label in labels])
            if np.abs(scores_C - scores[text]).max() > TOLERANCE:
                observed.wrong.append(f"{text!r}: {prediction}, version {content['version']}")


async def wait_until(condition):
    limit_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < limit_s, "timeout"
        await asyncio.sleep(0.02)


async def wait_for_answers(observed, answers=60):
    before = observed.answers
    await wait_until(lambda: observed.answers >= before + answers or observed.wrong)


async def switch_versions(repository, observed, switches):
    model = repository / "text"
    for version in range(3, 3 + switches):
        partial = repository.with_name("partial")
        shutil.copytree(model / str(version - 2), partial)
        partial.rename(model / str(version))
        await wait_until(
            lambda version=version: str(version) in observed.versions or observed.wrong
        )
        await wait_for_answers(observed, 10)


def disconnect(url):
    """Send a request and disconnect without waiting for the response."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"texts": TEXTS}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection, suppress(OSError):
        connection.sendall(head.encode() + body)


async def metric_sum(session, url, name, **labels):
    """Return the sum of a metric's series that have these labels."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and {*labels.items()} <= {*sample.labels.items()}
    )


def refuses(url):
    """Return whether the server refuses new connections, as it does after SIGTERM."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return True
    return False


async def stop(session, process, url, observed):
    """Stop the server when it has read one request of each client and answered none of them.

    Requests read after SIGTERM may be lost, so none is sent then. The two metric requests before
    SIGTERM ensure that the server has read its connections since the clients sent.
    """
    process.send_signal(signal.SIGUSR2)
    answers = -1
    while answers != observed.answers:  # until all clients are waiting
        answers = observed.answers
        await asyncio.sleep(0.3)
    observed.last = True
    for _ in range(2):
        await metric_sum(session, url, "pipework_batches_total")
    process.send_signal(signal.SIGTERM)
    await wait_until(lambda: refuses(url))
    process.send_signal(signal.SIGUSR2)
    observed.late = -answers


async def run_load(repository, process, url, expected, observed, switches):
    async with aiohttp.ClientSession() as session:
        clients = [
            asyncio.create_task(client(session, url, expected, observed, seed))
            for seed in range(CLIENTS)
        ]
        await wait_for_answers(observed)
        await switch_versions(repository, observed, switches)
        process.send_signal(signal.SIGUSR1)
        await wait_for_answers(observed, 100)
        for _ in range(DISCONNECTS):
            await asyncio.to_thread(disconnect, url)
        await wait_for_answers(observed)
        observed.disconnected = await metric_sum(
            session, url, "pipework_requests_total", status="499"
        )
        batches = await metric_sum(session, url, "pipework_batches_total")
        observed.batch_tokens = (
            await metric_sum(session, url, "pipework_batch_tokens_total") / batches
        )
        await stop(session, process, url, observed)
        await asyncio.wait_for(asyncio.gather(*clients), TIMEOUT_S)
        observed.late += observed.answers


@pytest.mark.parametrize(
    ("instances", "batch_tokens", "switches"),
    [
        *repeated([(1, 1024, 1), (1, 1024, 3)]),
        pytest.param(1, 1024, 10, marks=pytest.mark.slow),
        pytest.param(
            2, 64, 1, id="requests larger than a batch, two engines", marks=pytest.mark.slow
        ),
    ],
)
def test_no_request_is_lost_or_answered_wrongly(
    repository, expected, tmp_path, instances, batch_tokens, switches
):
    served = shutil.copytree(repository, tmp_path / "served" / "repository")
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, str(served), str(instances), str(batch_tokens)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process,
    ):
        url = next(word for word in process.stdout.readline().split() if "://" in word)
        observed = Observed()
        try:
            asyncio.run(run_load(served, process, url, expected, observed, switches))
            code = process.wait(TIMEOUT_S)
        finally:
            ended = process.poll()
            process.kill()
            log.seek(0)
            log_text = log.read()
            print(observed, ended, log_text)  # noqa: T201  (shown if the test fails)
    assert observed.wrong == []
    assert {str(number) for number in range(2, 3 + switches)} <= observed.versions
    assert "an engine crashed" in log_text
    assert "was reopened" in log_text
    assert (
        observed.disconnected > DISCONNECTS / 4
    )  # the others are answered before the disconnect is noticed
    assert 0 < observed.batch_tokens <= batch_tokens
    assert observed.late == CLIENTS
    assert code == 0
