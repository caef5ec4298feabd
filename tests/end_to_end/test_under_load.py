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

from export.answer import open_encoder
from export.config import ExportSettings, TritonSettings
from export.model_repository import Wanted, add_version
from export.run import export
from pipework.engine_record import EngineFormat, Layout, Precision, Variant
from pipework.examples import Example
from pipework.manifest import read_manifest
from pipework.predictions import probabilities
from pipework.progress import Silent
from train.evaluate import open_reference

PACKED = Variant(format=EngineFormat.OPENVINO, precision=Precision.BF16, layout=Layout.PACKED)
CLIENTS, SWITCHES, HANG_UPS = 12, 10, 200
APART = 0.02  # of a probability: what bf16 may change
PATIENCE_S = 60
TEXTS = [
    f"{first} {middle} {last}"
    for first in ("The match", "Shares of the bank", "A new phone", "今天的电影")
    for middle in ("went to extra time", "fell again", "", "was seen by " + "many " * 30)
    for last in ("on Sunday", "in the rain, they said")
]
# What `pipe serve` does, and on SIGUSR1 an engine's thread dies of its next batch.
SERVER = """
import signal, sys
from pathlib import Path
from serve.config import ModelSettings, ServeSettings
from serve.engines.collated import CollatedEngine
from serve.run import Address, serve

infer, killed = CollatedEngine.infer, []

def deadly(engine, encodings):
    if killed:
        killed.clear()
        raise SystemExit
    return infer(engine, encodings)

CollatedEngine.infer = deadly
signal.signal(signal.SIGUSR1, lambda *_: killed.append(True))
serve(
    Path(sys.argv[1]),
    ServeSettings(models=ModelSettings(poll_s=0.1)),
    address=Address(port=0, grpc_port=0),
    ready=lambda said: print(said, flush=True),
)
"""


@dataclass
class Seen:
    """What the clients saw."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    stopped_s: float = float("inf")


@pytest.fixture(scope="module")
def repository(exported_run, tmp_path_factory):
    """Version 1 with the ONNX engine, version 2 with a packed bf16 one of OpenVINO."""
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
    """Ask until the server stops, and hold each answer against the checkpoint's."""
    labels, scores = expected
    choose = random.Random(seed)
    while True:
        texts = choose.choices(TEXTS, k=choose.choice([1, 1, 2, 8]))
        sent_s = time.monotonic()
        try:
            async with session.post(f"{url}/v1/predict", json={"texts": texts}) as answer:
                found = await answer.json()
        except (aiohttp.ClientError, OSError) as error:
            if sent_s < seen.stopped_s:
                seen.wrong.append(f"{error!r}, sent before SIGTERM")
            return
        if answer.status != 200:
            if sent_s < seen.stopped_s:
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


async def switch_versions(repository, seen):
    model = repository / "text"
    for version in range(3, 3 + SWITCHES):
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


async def ordeal(repository, process, url, expected, seen):
    async with aiohttp.ClientSession() as session:
        clients = [
            asyncio.create_task(client(session, url, expected, seen, seed))
            for seed in range(CLIENTS)
        ]
        await goes_on(seen)
        await switch_versions(repository, seen)
        process.send_signal(signal.SIGUSR1)
        await goes_on(seen, 200)
        for _ in range(HANG_UPS):
            await asyncio.to_thread(hang_up, url)
        await goes_on(seen)
        seen.stopped_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*clients), PATIENCE_S)


@pytest.mark.slow
def test_no_request_is_lost_or_answered_wrongly(repository, expected, tmp_path):
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, str(repository)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as process,
    ):
        url = next(word for word in process.stdout.readline().split() if "://" in word)
        seen = Seen()
        try:
            asyncio.run(ordeal(repository, process, url, expected, seen))
            code = process.wait(PATIENCE_S)
        finally:
            ended = process.poll()
            process.kill()
            log.seek(0)
            said = log.read()
            print(seen, ended, said)  # noqa: T201  (shown where the test fails)
    assert seen.wrong == []
    assert {str(number) for number in range(2, 3 + SWITCHES)} <= seen.versions
    assert "an engine died" in said
    assert "was opened again" in said
    assert code == 0
