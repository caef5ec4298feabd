"""Inference endpoints are called without FastAPI's routing; other requests are forwarded."""

import asyncio
import json

import pytest
from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from pipework.errors import TooBusyError
from pipework.serve.http.direct_routes import DirectRouteMiddleware, DirectRoutes

router = APIRouter()


@router.get("/v1/models/{name}")
async def show(name: str) -> Response:
    return Response(name)


@router.post("/v1/models/{name}/infer")
async def infer(request: Request, name: str) -> Response:
    match await request.body():
        case b"busy":
            message = "the queue is full"
            raise TooBusyError(message, 3)
        case b"bug":
            raise ZeroDivisionError
    return Response(name)


def sent_for(method: str, path: str, body: bytes = b"") -> list[Message]:
    """Return the messages of the middleware; the inner app sends "reached"."""
    sent: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "reached"})

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    asyncio.run(DirectRouteMiddleware(app, DirectRoutes(router))(scope, receive, send))
    return sent


def test_a_post_route_gets_its_path_parameters() -> None:
    start, body = sent_for("POST", "/v1/models/topics/infer")
    assert (start["status"], body["body"]) == (200, b"topics")


def test_an_error_becomes_a_response_and_a_bug_is_raised() -> None:
    start, body = sent_for("POST", "/v1/models/topics/infer", b"busy")
    assert start["status"] == 429
    assert json.loads(body["body"])["error"].startswith("the queue is full")
    with pytest.raises(ZeroDivisionError):
        sent_for("POST", "/v1/models/topics/infer", b"bug")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models/topics"),
        ("GET", "/v1/models/topics/infer"),
        ("POST", "/v1/models/topics/infer/"),
        ("POST", "/v1/models/a/b/infer"),
    ],
)
def test_other_requests_are_forwarded(method: str, path: str) -> None:
    assert sent_for(method, path) == [{"type": "reached"}]
