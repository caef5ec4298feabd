"""Requests create no reference cycles, because garbage collections stop all requests."""

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
from pipework.serve.http.disconnect import STATE, Disconnect
from pipework.serve.models.open_models import open_models

REQUESTS = 30
MAX_OBJECTS = 10
BODY = {"texts": ["rain"]}
SendRequest = Callable[..., Awaitable[int]]


@asynccontextmanager
async def sender(app: FastAPI) -> AsyncIterator[SendRequest]:
    """Yield a function that sends a request and returns the status, without an HTTP client."""

    async def send_request(
        content: object,
        path: str = "/v1/predict",
        *,
        disconnect_after_s: float | None = None,
        **headers: str,
    ) -> int:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            return incoming.pop()

        async def send(message: Message) -> None:
            sent.append(message)

        raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        state: dict[str, object] = {}
        disconnect = Disconnect()
        disconnect.add_to(state)
        if disconnect_after_s is not None:
            asyncio.get_running_loop().call_later(disconnect_after_s, disconnect.trigger)
        scope = {"type": "http", "method": "POST", "path": path, "headers": raw, STATE: state}
        await app(scope | {"query_string": b"", "http_version": "1.1"}, receive, send)
        return int(sent[0]["status"])

    yield send_request


@pytest.fixture
def gc_disabled() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def garbage_after(run: Path, work: Callable[[SendRequest], Awaitable[None]], **queue: int) -> int:
    """Return the number of objects that a collection finds after a second run of the work."""
    settings = ServeSettings(queue=QueueSettings(**queue))

    async def measure(app: FastAPI) -> int:
        async with sender(app) as send_request:
            await work(send_request)
            await asyncio.sleep(0.1)  # until the engine threads release cancelled requests
            gc.collect()
            await work(send_request)
            await asyncio.sleep(0.1)
            return gc.collect()

    with open_models(run, settings) as models:
        return asyncio.run(measure(build_app(models, settings)))


@pytest.mark.usefixtures("gc_disabled")
@pytest.mark.parametrize(
    ("status", "request_args", "headers"),
    [
        (200, (BODY,), {}),
        (400, (b"{",), {}),
        (400, (BODY,), {"x_priority": "no"}),
        (404, (BODY | {"model": "other"},), {}),
        (422, ({"texts": [1]},), {}),
        (422, ({"inputs": [{"text": "rain", "text_pair": "goal"}]},), {}),
        (400, ({"inputs": []}, "/v2/models/topics/infer"), {}),
        (504, (BODY,), {"x_request_timeout_ms": "0.001"}),
    ],
)
def test_sequential_requests_leave_no_garbage(
    run: Path, status: int, request_args: tuple[object, ...], headers: dict[str, str]
) -> None:
    async def work(send_request: SendRequest) -> None:
        for _ in range(REQUESTS):
            assert await send_request(*request_args, **headers) == status

    assert garbage_after(run, work) < MAX_OBJECTS


@pytest.mark.usefixtures("gc_disabled")
@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ({429, 200}, {}),
        ({504}, {"x_request_timeout_ms": "60"}),
        ({499}, {"disconnect_after_s": 0.03}),
    ],
)
def test_concurrent_requests_leave_no_garbage(
    slow_run: Path, expected: set[int], options: dict[str, object]
) -> None:
    texts = {"texts": ["rain"] * 200}

    async def work(send_request: SendRequest) -> None:
        first = asyncio.create_task(send_request(texts))
        await asyncio.sleep(0.02)
        statuses = await asyncio.gather(*(send_request(texts, **options) for _ in range(REQUESTS)))
        assert await first == 200
        assert set(statuses) <= expected | {200}
        assert sum(status in expected for status in statuses) > REQUESTS / 2

    requests = 10 if 429 in expected else 1000
    assert garbage_after(slow_run, work, requests=requests, instances=1) < MAX_OBJECTS
