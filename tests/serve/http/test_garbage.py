"""Requests create no reference cycles, because garbage collections stop all requests."""

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipework.serve.config import QueueSettings, ServeSettings
from pipework.serve.models.open_models import open_models
from pipework.serve.models.registry import Models
from tests.serve.servers import MemoryServer

REQUESTS = 30
MAX_OBJECTS = 10
BODY = {"texts": ["rain"]}
SendRequest = Callable[..., Awaitable[int]]


def sender(server: MemoryServer) -> SendRequest:
    """Return a function that sends a request and returns the status, without an HTTP client."""

    async def send_request(
        content: object,
        path: str = "/v1/predict",
        *,
        disconnect_after_s: float | None = None,
        **headers: str,
    ) -> int:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: [::]", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
        opened, transport = server.connect()
        opened.data_received("\r\n".join((*lines, "", "")).encode() + body)
        if disconnect_after_s is not None:
            await asyncio.sleep(disconnect_after_s)
        else:
            await transport.until(lambda: transport.written)
        opened.connection_lost(None)
        return int(transport.written.split()[1]) if transport.written else 499

    return send_request


def garbage_after(run: Path, work: Callable[[SendRequest], Awaitable[None]], **queue: int) -> int:
    """Return the number of objects that a collection finds after a second run of the work."""
    settings = ServeSettings(queue=QueueSettings(**queue))

    async def measure(models: Models) -> int:
        send_request = sender(MemoryServer(models, settings=settings))
        await work(send_request)
        await asyncio.sleep(0.1)  # until the engine threads release cancelled requests
        gc.collect()
        await work(send_request)
        await asyncio.sleep(0.1)
        return gc.collect()

    with open_models(run, settings) as models:
        return asyncio.run(measure(models))


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
    texts = {"texts": ["rain"] * 100}

    async def work(send_request: SendRequest) -> None:
        first = asyncio.create_task(send_request(texts))
        await asyncio.sleep(0.02)
        statuses = await asyncio.gather(*(send_request(texts, **options) for _ in range(REQUESTS)))
        assert await first == 200
        assert set(statuses) <= expected | {200}
        assert sum(status in expected for status in statuses) > REQUESTS / 2

    requests = 10 if 429 in expected else 1000
    assert garbage_after(slow_run, work, requests=requests, instances=1) < MAX_OBJECTS
