import asyncio
import json

import pytest
from starlette.responses import PlainTextResponse

from pipework.serve.http.auth import HEALTH
from pipework.serve.http.closing_responses import (
    HEAD_BYTES,
    ConnectionLimitApp,
    head_too_long_app,
)


def answer(app, path):
    """Return status, headers and body of the response to GET."""
    messages = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        messages.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(app(scope, receive, send))
    start, *parts = messages
    body = b"".join(part.get("body", b"") for part in parts)
    return start["status"], [*start["headers"]], body


healthy = PlainTextResponse("alive", headers={"x-own": "kept"})


def test_a_head_that_is_too_long_gets_431_with_the_limit():
    status, headers, body = answer(head_too_long_app, "/v1/predict")
    assert status == 431
    assert f"at most {HEAD_BYTES} bytes" in json.loads(body)["error"]
    assert (b"connection", b"close") in headers


@pytest.mark.parametrize("path", sorted(HEALTH))
def test_health_checks_are_answered_above_the_connection_limit(path):
    status, headers, body = answer(ConnectionLimitApp(healthy, 3), path)
    assert (status, body) == (200, b"alive")
    assert (b"x-own", b"kept") in headers
    assert (b"connection", b"close") in headers


@pytest.mark.parametrize("path", ["/v1/predict", "/metrics", "/"])
def test_other_requests_above_the_connection_limit_are_rejected(path):
    status, headers, body = answer(ConnectionLimitApp(healthy, 3), path)
    assert status == 503
    error = json.loads(body)["error"]
    assert error.startswith("all 3 allowed connections are in use; ")
    assert (b"connection", b"close") in headers
