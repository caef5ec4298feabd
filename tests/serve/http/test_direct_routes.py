"""Doors that ask models are called past the framework's routing, and nothing else is."""

import asyncio
import json

import pytest
from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from pipework.errors import TooBusyError
from pipework.serve.http.direct_routes import Asking, Direct

router = APIRouter()


@router.get("/v1/models/{name}")
async def show(name: str) -> Response:
    return Response(name)


@router.post("/v1/models/{name}/ask")
async def ask(request: Request, name: str) -> Response:
    match await request.body():
        case b"busy":
            message = "the queue is full"
            raise TooBusyError(message, 3)
        case b"bug":
            raise ZeroDivisionError
    return Response(name)


def sent_for(method: str, path: str, body: bytes = b"") -> list[Message]:
    """Return what is sent; the app behind sends that it was reached."""
    sent: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "reached"})

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    asyncio.run(Direct(app, Asking(router))(scope, receive, send))
    return sent


def test_a_door_that_asks_a_model_is_answered_here_with_the_parts_of_its_path() -> None:
    start, body = sent_for("POST", "/v1/models/topics/ask")
    assert (start["status"], body["body"]) == (200, b"topics")


def test_an_error_of_it_is_an_answer_and_a_bug_is_left_to_the_framework() -> None:
    start, body = sent_for("POST", "/v1/models/topics/ask", b"busy")
    assert start["status"] == 429
    assert json.loads(body["body"])["error"].startswith("the queue is full")
    with pytest.raises(ZeroDivisionError):
        sent_for("POST", "/v1/models/topics/ask", b"bug")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models/topics"),
        ("GET", "/v1/models/topics/ask"),
        ("POST", "/v1/models/topics/ask/"),
        ("POST", "/v1/models/a/b/ask"),
    ],
)
def test_all_else_is_passed_on(method: str, path: str) -> None:
    assert sent_for(method, path) == [{"type": "reached"}]
