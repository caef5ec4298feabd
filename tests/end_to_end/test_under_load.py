"""A server under load: each answer is the checkpoint's, and none is lost.

Versions are switched, an engine is killed, clients hang up, and SIGTERM comes last.
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

from pipework.cpu import computes_bf16
from pipework.data.examples import Example
from pipework.export.config import ExportSettings, TritonSettings
from pipework.export.inference import open_encoder
from pipework.export.run import export
from pipework.export.triton.model_repository import Wanted, add_version
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.scoring.predictions import probabilities
from pipework.train.model.checkpoint_engine import open_reference

LOWEST = Precision.BF16 if computes_bf16() else Precision.FP32
PACKED = Variant(format=EngineFormat.OPENVINO, precision=LOWEST, layout=Layout.PACKED)
CLIENTS, HANG_UPS = 12, 200
APART = 0.02  # of a probability: what bf16 may change
PATIENCE_S = 60
TEXTS = [
    f"{first} {middle} {last}"
    for first in ("The match", "Shares of the bank", "A new phone", "今天的电影")
    for middle in ("went to extra time", "fell again", "", "was seen by " + "many " * 30)
    for last in ("on Sunday", "in the rain, they said")
]
# What `pipe serve` does. On SIGUSR1 an engine's thread dies of its next batch; SIGUSR2 holds the
# engines before their next batch, and lets them go on when it comes again.
SERVER = """
import faulthandler, signal, sys
from pathlib import Path
from threading import Event
from pipework.serve.config import ModelSettings, QueueSettings, ServeSettings
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.run import Address, serve

faulthandler.enable()
start, killed, free = CollatedEngine.start, [], Event()
free.set()

def deadly(engine, encodings):
    free.wait()
    if killed:
        killed.clear()
        raise SystemExit
    return start(engine, encodings)

CollatedEngine.start = deadly
signal.signal(signal.SIGUSR1, lambda *_: killed.append(True))
signal.signal(signal.SIGUSR2, lambda *_: free.clear() if free.is_set() else free.set())
instances, batch_tokens = map(int, sys.argv[2:])
serve(
    Path(sys.argv[1]),
    ServeSettings(
        models=ModelSettings(poll_s=0.1),
        queue=QueueSettings(instances=instances, batch_tokens=batch_tokens, tokens=10_000_000),
    ),
    address=Address(port=0, grpc_port=0),
    ready=lambda said: print(said, flush=True),
)
"""


@dataclass(kw_only=True)
class Seen:
    """What the clients saw; with `last` set they send nothing more."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    last: bool = False
    late: int = 0
    hung_up: float = 0
    batch_tokens: float = 0


@pytest.fixture(scope="module")
def repository(exported_run, tmp_path_factory):
    """Version 1 with the ONNX engine, version 2 with a packed one of OpenVINO."""
    both = tmp_path_factory.mktemp("runs") / "both"
    shutil.copytree(exported_run, both)
    export(both, Silent(), [PACKED], settings=ExportSettings(speed_s=0.2))
    folder = tmp_path_factory.mktemp("served") / "repository"
    for run, layout in ((exported_run, None), (both, Layout.PACKED)):
        add_version(run, folder, TritonSettings(name="text"), Wanted(layout=layout), Silent())
    return folder


@pytest.fixture(scope="module")
def expected(exported_run):
    """The checkpoint's probabilities by text, and the labels in their order."""
    manifest = read_manifest(exported_run)
    encodings = open_encoder(exported_run, manifest).encode([Example(text=one) for one in TEXTS])
    with open_reference(exported_run, manifest) as checkpoint:
        scores_NC = probabilities(checkpoint.infer(encodings), manifest.task)
    return manifest.task.labels, dict(zip(TEXTS, scores_NC, strict=True))


async def client(session, url, expected, seen, seed):
    """Ask until the last request, and hold each answer against the checkpoint's."""
    labels, scores = expected
    choose = random.Random(seed)
    while not (seen.last or seen.wrong):
        texts = choose.choices(TEXTS, k=choose.choice([1, 1, 2, 8]))
        try:
            async with session.post(f"{url}/v1/predict", json={"texts": texts}) as answer:
                found = await answer.json()
        except (aiohttp.ClientError, OSError) as error:
            seen.wrong.append(repr(error))
            return
        if answer.status != 200:
            seen.wrong.append(f"{answer.status}: {found}")
            return
        seen.answers += 1
        seen.versions.add(found["version"])
        for text, one in zip(texts, found["predictions"], strict=True):
            given = np.array([one["scores"][label] for label in labels])
            if np.abs(given - scores[text]).max() > APART:
                seen.wrong.append(f"{text!r}: {one}, version {found['version']}")


async def until(condition):
    limit_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit_s, "it did not happen"
        await asyncio.sleep(0.02)


async def goes_on(seen, answers=60):
    before = seen.answers
    await until(lambda: seen.answers >= before + answers or seen.wrong)


async def switch_versions(repository, seen, switches):
    model = repository / "text"
    for version in range(3, 3 + switches):
        partial = repository.with_name("partial")
        shutil.copytree(model / str(version - 2), partial)
        partial.rename(model / str(version))
        await until(lambda version=version: str(version) in seen.versions or seen.wrong)
        await goes_on(seen, 10)


def hang_up(url):
    """Send a request and do not wait for its answer."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"texts": TEXTS}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection, suppress(OSError):
        connection.sendall(head.encode() + body)


async def counted(session, url, name, **labels):
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
    """Whether no connection is taken any more: SIGTERM has come."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return True
    return False


async def stop(session, process, url, seen):
    """Stop the server while it has read one request of each client and answered none.

    What a server reads after SIGTERM it may lose: so nothing is sent then, and the two answers
    before it show that it has looked at its connections since the clients sent.
    """
    process.send_signal(signal.SIGUSR2)
    answers = -1
    while answers != seen.answers:  # all clients wait
        answers = seen.answers
        await asyncio.sleep(0.3)
    seen.last = True
    for _ in range(2):
        await counted(session, url, "pipework_batches_total")
    process.send_signal(signal.SIGTERM)
    await until(lambda: refuses(url))
    process.send_signal(signal.SIGUSR2)
    seen.late = -answers


async def ordeal(repository, process, url, expected, seen, switches):
    async with aiohttp.ClientSession() as session:
        clients = [
            asyncio.create_task(client(session, url, expected, seen, seed))
            for seed in range(CLIENTS)
        ]
        await goes_on(seen)
        await switch_versions(repository, seen, switches)
        process.send_signal(signal.SIGUSR1)
        await goes_on(seen, 200)
        for _ in range(HANG_UPS):
            await asyncio.to_thread(hang_up, url)
        await goes_on(seen)
        seen.hung_up = await counted(session, url, "pipework_requests_total", status="499")
        batches = await counted(session, url, "pipework_batches_total")
        seen.batch_tokens = await counted(session, url, "pipework_batch_tokens_total") / batches
        await stop(session, process, url, seen)
        await asyncio.wait_for(asyncio.gather(*clients), PATIENCE_S)
        seen.late += seen.answers


@pytest.mark.parametrize(
    ("instances", "batch_tokens", "switches"),
    [(1, 1024, 10), pytest.param(2, 64, 1, id="requests larger than a batch, two engines")],
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
        seen = Seen()
        try:
            asyncio.run(ordeal(served, process, url, expected, seen, switches))
            code = process.wait(PATIENCE_S)
        finally:
            ended = process.poll()
            process.kill()
            log.seek(0)
            said = log.read()
            print(seen, ended, said)  # noqa: T201  (shown where the test fails)
    assert seen.wrong == []
    assert {str(number) for number in range(2, 3 + switches)} <= seen.versions
    assert "an engine died" in said
    assert "was opened again" in said
    assert seen.hung_up > HANG_UPS / 4  # others are answered before it is known
    assert 0 < seen.batch_tokens <= batch_tokens
    assert seen.late == CLIENTS
    assert code == 0
