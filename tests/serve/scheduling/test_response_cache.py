"""A text that was classified before gets the same answer again, without a computation."""

import asyncio
import gc
import os
import random
import threading
import tracemalloc
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc.aio
import httpx
import numpy as np
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from pipework.data.examples import Example
from pipework.errors import DeadlineError, NotReadyError
from pipework.scoring.evaluation import Engine
from pipework.serve.app import build_app
from pipework.serve.config import ServeSettings
from pipework.serve.models.open_models import open_models, open_predictor
from pipework.serve.models.registry import Change, Models
from pipework.serve.observability.metrics import ServerMetrics
from pipework.serve.request.context import RequestOptions, deadline_error
from pipework.serve.scheduling.job import JobResult
from pipework.serve.scheduling.response_cache import ENTRY_BYTES, ResponseCache
from pipework.settings import load_settings
from pipework.tasks.outputs import Outputs, offsets_of
from pipework.text.encoding import Encoding
from tests.serve.conftest import Server, Shelf
from tests.serve.inference_protocol.conftest import listening
from tests.serve.inference_protocol.test_grpc import request
from tests.serve.servers import Infer, server_in_thread
from tests.serve.test_run import metric, wait_for

TEXTS = ["rain", "goal team match", "bank " * 40, "", "sun wind", "stock"]
LIMIT = 2**20
CLIENTS = 50
TIMEOUT_S = 30
Wrap = Callable[[Infer], None]


def settings(*more: str) -> ServeSettings:
    # Checks of the engines would find that each computation of `noisy` differs.
    overrides = ["cache.bytes=1MB", "engine.recheck_s=0", "models.poll_s=0", *more]
    return load_settings(ServeSettings, None, overrides)


@pytest.fixture
def noisy(wrap: Wrap) -> list[int]:
    """Let each computation have other outputs; return the numbers of computed texts."""
    computed: list[int] = []

    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        computed.append(len(encodings))
        outputs = engine.infer(encodings)
        outputs.values[:, 0] += np.float32(random.random())
        return outputs

    wrap(infer)
    return computed


class Words:
    """Computes a row for each word, with other values in each computation."""

    def __init__(self) -> None:
        self.computed: list[list[str]] = []

    async def __call__(self, examples: Sequence[Example]) -> JobResult:
        self.computed.append([example.text for example in examples])
        number = len(self.computed)
        await asyncio.sleep(0)
        words = [len(example.text.split()) for example in examples]
        values = np.full((sum(words), 2), number, np.float32)
        truncated = tuple(index for index, count in enumerate(words) if count > 2)
        outputs = Outputs(values, offsets_of(np.array(words)))
        return JobResult(outputs=outputs, truncated=truncated, infer_s=number)


def answer(cache: ResponseCache, words: Words, *texts: str) -> JobResult:
    return asyncio.run(cache.answer([Example(text=text) for text in texts], words))


def test_only_texts_that_are_not_known_are_computed() -> None:
    cache, words = ResponseCache(LIMIT, 2), Words()
    answer(cache, words, "a b", "c d e")
    result = answer(cache, words, "f g h i", "a b", "j", "c d e", "")
    assert words.computed == [["a b", "c d e"], ["f g h i", "j", ""]]
    assert result.outputs.offsets.tolist() == [0, 4, 6, 7, 10, 10]
    assert result.outputs.values[:, 1].tolist() == [2, 2, 2, 2, 1, 1, 2, 1, 1, 1]
    assert result.truncated == (0, 3)
    assert result.infer_s == 2
    assert answer(cache, words, "").outputs.offsets.tolist() == [0, 0]
    assert (cache.hits, cache.misses, len(words.computed)) == (3, 5, 2)


def test_texts_computed_at_the_same_time_get_the_outputs_of_the_first() -> None:
    cache, words = ResponseCache(LIMIT, 2), Words()
    examples = [Example(text="a")]

    async def both() -> list[JobResult]:
        return await asyncio.gather(*(cache.answer(examples, words) for _ in range(2)))

    results = asyncio.run(both())
    assert len(words.computed) == 2
    assert [result.outputs.values.tolist() for result in results] == [[[1, 1]], [[1, 1]]]


def test_a_failed_computation_is_not_kept() -> None:
    cache, words = ResponseCache(LIMIT, 2), Words()

    def fail(_: Sequence[Example]) -> Awaitable[JobResult]:
        raise deadline_error()

    with pytest.raises(DeadlineError):
        asyncio.run(cache.answer([Example(text="a")], fail))
    answer(cache, words, "a")
    assert words.computed == [["a"]]


def test_each_field_of_an_input_counts() -> None:
    cache, words = ResponseCache(LIMIT, 2), Words()
    inputs = [
        Example(text="a b"),
        Example(text="a", text_pair="b"),
        Example(text="b", text_pair="a"),
        Example(text="a b", text_pair=""),
        Example(text="a b", entities=((0, 1), (2, 3))),
        Example(text="a b", entities=((2, 3), (0, 1))),
    ]
    for example in inputs:
        asyncio.run(cache.answer([example], words))
    assert len(words.computed) == len(inputs)


def test_the_memory_is_within_the_limit_and_the_oldest_entries_leave() -> None:
    limit = 2**21
    row = JobResult(outputs=Outputs.of(np.ones((1, 3), np.float32)))
    cache = ResponseCache(limit, 3)
    first, used = os.urandom(16), []
    tracemalloc.start()
    cache.keep([first], row)
    for number in range(25_000):
        cache.keep([os.urandom(16)], row)
        assert cache.find([first]) != [None]
        if number % 100 == 0:
            used.append(tracemalloc.get_traced_memory()[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cache.bytes <= limit
    assert 0.5 * limit < max(used) < limit
    assert peak < 1.25 * limit  # while the table grows, the old one exists too
    large = JobResult(outputs=Outputs(np.ones((limit, 3), np.float32), np.array([0, limit])))
    cache.keep([b"large"], large)
    assert cache.find([b"large"]) == [None]
    assert cache.find([first]) != [None]


@pytest.mark.parametrize("kind", ["run", "pair_run", "entity_run", "multi_run", "regression_run"])
def test_answers_from_the_cache_are_the_same_bits(
    kind: str, noisy: list[int], request: pytest.FixtureRequest
) -> None:
    texts = [f"<e1>rain</e1> {'sun ' * words} <e2>goal</e2>" for words in (0, 40, 3)]
    pair = "rain" if kind == "pair_run" else None
    examples = [Example(text=text, text_pair=pair) for text in texts]
    with open_predictor(request.getfixturevalue(kind)) as predictor:
        uncached = [asyncio.run(predictor.predict(examples)) for _ in range(2)]
        assert uncached[0] != uncached[1]
        predictor.keep_outputs(LIMIT)
        computed = asyncio.run(predictor.predict(examples))
        noisy.clear()
        known = asyncio.run(predictor.predict([examples[1], examples[0], examples[2]], top_k=10))
        assert known == [computed[1], computed[0], computed[2]]
        assert [prediction.truncated for prediction in known] == [True, False, False]
        assert predictor.scheduler.statistics.totals.truncated == 4
        assert noisy == []


class Endpoints:
    """Sends texts to each endpoint of a server, and returns the statuses."""

    def __init__(self, http: httpx.AsyncClient, channel: grpc.aio.Channel) -> None:
        self._http = http
        self._stub = GRPCInferenceServiceStub(channel)

    async def v1(self, *texts: str) -> int:
        return (await self._http.post("/v1/predict", json={"texts": texts})).status_code

    async def v2(self, *texts: str) -> int:
        data = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        sent = await self._http.post("/v2/models/topics/infer", json={"inputs": [data]})
        return sent.status_code

    async def grpc(self, *texts: str) -> grpc.StatusCode:
        return await self._stub.ModelInfer(request("topics", texts)).code()


async def fill_and_ask(
    endpoints: Endpoints, go: threading.Event, started: threading.Event
) -> list[int | grpc.StatusCode]:
    assert await endpoints.v1("rain", "goal") == 200
    go.clear()
    started.clear()
    filler = asyncio.create_task(endpoints.v1("stock"))
    assert await asyncio.to_thread(started.wait, TIMEOUT_S)
    statuses = [
        await endpoints.v1("sun"),
        await endpoints.v2("sun"),
        await endpoints.v1("rain", "sun"),
        await endpoints.grpc("sun"),
        await endpoints.v1("goal", "rain"),
        await endpoints.v2("rain"),
        await endpoints.grpc("rain", "rain"),
    ]
    go.set()
    assert await filler == 200
    return statuses


def test_all_endpoints_use_the_cache_also_while_the_queue_is_full(run: Path, wrap: Wrap) -> None:
    go, started = threading.Event(), threading.Event()
    go.set()

    def infer(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
        started.set()
        assert go.wait(TIMEOUT_S)
        return engine.infer(encodings)

    wrap(infer)
    chosen = settings("queue.requests=1", "queue.instances=1")

    async def ask(models: Models, url: str) -> list[int | grpc.StatusCode]:
        async with (
            listening(chosen, models) as (port, _),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
            httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http,
        ):
            return await fill_and_ask(Endpoints(http, channel), go, started)

    with (
        open_models(run, chosen) as models,
        server_in_thread(build_app(models, chosen)) as url,
    ):
        statuses = asyncio.run(ask(models, url))
        text = ServerMetrics(models).text().decode()
    assert statuses[:4] == [429, 429, 429, grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert statuses[4:] == [200, 200, grpc.StatusCode.OK]
    counts = {line.split("{")[0]: line.split()[-1] for line in text.splitlines()}
    assert counts["pipework_cache_hits_total"] == "6.0"  # also of a refused request
    assert counts["pipework_cache_misses_total"] == "7.0"
    assert float(counts["pipework_cache_bytes"]) > 3 * ENTRY_BYTES


def test_a_deadline_that_has_passed_counts_for_a_known_text(run: Path) -> None:
    late = RequestOptions(deadline_s=0)
    with open_predictor(run) as predictor:
        predictor.keep_outputs(LIMIT)
        asyncio.run(predictor.predict([Example(text="rain")]))
        with pytest.raises(DeadlineError):
            asyncio.run(predictor.predict([Example(text="rain")], options=late))


def test_a_version_with_a_wrong_engine_gives_no_known_answers(run: Path) -> None:
    with open_predictor(run) as predictor:
        predictor.keep_outputs(LIMIT)
        asyncio.run(predictor.predict([Example(text="rain")]))
        predictor.scheduler.fault = "wrong logits"
        for call in (
            lambda: predictor.check_room(RequestOptions()),
            lambda: asyncio.run(predictor.predict([Example(text="rain")])),
        ):
            with pytest.raises(NotReadyError, match="wrong logits"):
                call()
        predictor.scheduler.fault = ""


def test_without_the_setting_nothing_is_kept(run: Path, noisy: list[int]) -> None:
    with open_models(run, ServeSettings()) as models:
        (model,) = models.serving()
        for _ in range(2):
            asyncio.run(model.predict([Example(text="rain")]))
        assert noisy[-2:] == [1, 1]
        assert (model.load.cache_hits, model.load.cache_misses) == (0, 0)


class Clients:
    """Clients that send random texts until the end, and the scores by version and text."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self.answers: dict[tuple[str, str], set[tuple[float, ...]]] = defaultdict(set)

    def ask(self, seed: int) -> None:
        chooser = random.Random(seed)
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_S) as client:
            while not self.ended.is_set():
                texts = chooser.sample(TEXTS, 2)
                body = client.post("/v1/predict", json={"texts": texts}).raise_for_status().json()
                for text, prediction in zip(texts, body["predictions"], strict=True):
                    scores = (score for _, score in sorted(prediction["scores"].items()))
                    with self._lock:
                        self.answers[body["version"], text].add(tuple(scores))

    def had(self, version: str) -> bool:
        with self._lock:
            return all((version, text) in self.answers for text in TEXTS)


@pytest.mark.usefixtures("noisy")
def test_fifty_clients_get_the_same_bits_from_a_version_during_reloads(shelf: Shelf) -> None:
    shelf.add(1)
    chosen = settings("models.control=true")
    with (
        open_models(shelf.folder, chosen) as models,
        server_in_thread(build_app(models, chosen)) as url,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        clients = Clients(url)
        done = [pool.submit(clients.ask, seed) for seed in range(CLIENTS)]
        try:
            wait_for(lambda: clients.had("1"))
            for version in (2, 3):
                shelf.add(version)
                asyncio.run(models.request(Change.LOAD, "topics"))
                wait_for(partial(clients.had, str(version)))
        finally:
            clients.ended.set()
        for client in done:
            client.result()
    assert {len(scores) for scores in clients.answers.values()} == {1}
    for text in TEXTS:
        found = [clients.answers[version, text] for version in ("1", "2", "3")]
        assert len(set.union(*found)) == 3


@pytest.mark.usefixtures("noisy")
def test_an_unloaded_version_leaves_nothing(shelf: Shelf) -> None:
    shelf.add(1)
    scores = []
    with open_models(shelf.folder, settings("models.control=true")) as models:
        for _ in range(2):
            with models.lease("topics") as model:
                (prediction,) = asyncio.run(model.predict([Example(text="rain")]))
                (again,) = asyncio.run(model.predict([Example(text="rain")]))
                assert prediction == again
                scores.append(prediction.scores)
                cache = weakref.ref(model.cache)
            del model
            asyncio.run(models.request(Change.UNLOAD, "topics"))
            wait_for(lambda cache=cache: gc.collect() >= 0 and cache() is None)
            asyncio.run(models.request(Change.LOAD, "topics"))
    assert scores[0] != scores[1]


def test_each_worker_has_a_cache(run: Path, start_server: Callable[..., Server]) -> None:
    server = start_server(run, "cache.bytes=1MB", workers=2)
    for _ in range(20):
        httpx.post(f"{server.url}/v1/predict", json={"texts": ["rain"]}).raise_for_status()
    counted = partial(metric, server.url)

    def added_up() -> bool:
        misses = counted("pipework_cache_misses_total")
        return 1 <= misses <= 2 and counted("pipework_cache_hits_total") == 20 - misses

    wait_for(added_up)
    assert ENTRY_BYTES < counted("pipework_cache_bytes") < 1_000
