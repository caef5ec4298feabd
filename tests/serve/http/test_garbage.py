"""A request leaves nothing in cycles: a collection that has much to find stops all requests."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.types import Message

from pipework.serve.app import build_app
from pipework.serve.config import QueueSettings, ServeSettings
from pipework.serve.http.disconnect import STATE, HangUp
from pipework.serve.models.open_models import open_models

ASKED = 30
FEW = 10  # objects
ONE = {"texts": ["rain"]}
Ask = Callable[..., Awaitable[int]]


@asynccontextmanager
async def asking(app: FastAPI) -> AsyncIterator[Ask]:
    """Yield what sends a request, without a client that leaves garbage, and returns the status."""

    async def ask(
        content: object, path: str = "/v1/predict", *, gone_s: float | None = None, **headers: str
    ) -> int:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            return coming.pop()

        async def send(message: Message) -> None:
            sent.append(message)

        raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        state: dict[str, object] = {}
        hang_up = HangUp()
        hang_up.add_to(state)
        if gone_s is not None:
            asyncio.get_running_loop().call_later(gone_s, hang_up.happen)
        scope = {"type": "http", "method": "POST", "path": path, "headers": raw, STATE: state}
        await app(scope | {"query_string": b"", "http_version": "1.1"}, receive, send)
        return int(sent[0]["status"])

    yield ask


@pytest.fixture
def counted() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left_by(run: Path, work: Callable[[Ask], Awaitable[None]], **queue: int) -> int:
    """Return how many objects a collection finds after work was done once more than before."""
    settings = ServeSettings(queue=QueueSettings(**queue))

    async def measure(app: FastAPI) -> int:
        async with asking(app) as ask:
            await work(ask)
            await asyncio.sleep(0.1)  # what was given up is forgotten by the engines' threads
            gc.collect()
            await work(ask)
            await asyncio.sleep(0.1)
            return gc.collect()

    with open_models(run, settings) as models:
        return asyncio.run(measure(build_app(models, settings)))


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("status", "asked", "headers"),
    [
        (200, (ONE,), {}),
        (400, (b"{",), {}),
        (400, (ONE,), {"x_priority": "no"}),
        (404, (ONE | {"model": "other"},), {}),
        (422, ({"texts": [1]},), {}),
        (422, ({"inputs": [{"text": "rain", "text_pair": "goal"}]},), {}),
        (400, ({"inputs": []}, "/v2/models/topics/infer"), {}),
        (504, (ONE,), {"x_request_timeout_ms": "0.001"}),
    ],
)
def test_one_request_after_another(
    run: Path, status: int, asked: tuple[object, ...], headers: dict[str, str]
) -> None:
    async def work(ask: Ask) -> None:
        for _ in range(ASKED):
            assert await ask(*asked, **headers) == status

    assert left_by(run, work) < FEW


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("found", "options"),
    [
        ({429, 200}, {}),
        ({504}, {"x_request_timeout_ms": "60"}),
        ({499}, {"gone_s": 0.03}),
    ],
)
def test_many_at_once_at_a_slow_engine(
    slow_run: Path, found: set[int], options: dict[str, object]
) -> None:
    texts = {"texts": ["rain"] * 200}

    async def work(ask: Ask) -> None:
        first = asyncio.create_task(ask(texts))
        await asyncio.sleep(0.02)
        statuses = await asyncio.gather(*(ask(texts, **options) for _ in range(ASKED)))
        assert await first == 200
        assert set(statuses) <= found | {200}
        assert sum(status in found for status in statuses) > ASKED / 2

    requests = 10 if 429 in found else 1000
    assert left_by(slow_run, work, requests=requests, instances=1) < FEW
