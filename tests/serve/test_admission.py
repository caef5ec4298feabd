import asyncio
import json

import pytest
from starlette.types import Message, Receive, Scope, Send

from pipework.errors import NotReadyError, PipeError, TooBusyError
from serve.admission import Admission
from serve.models import Models

FULL = TooBusyError("the queue is full: 9 requests, 900 tokens wait", 3)


class Full:
    """A version whose queue is full, or that has another error."""

    name, version = "topics", "1"
    ready = True

    def __init__(self, error: PipeError | None) -> None:
        self.error = error

    def check_room(self) -> None:
        if self.error:
            raise self.error


def ask(path: str, error: PipeError | None) -> list[Message]:
    """Return what is sent; the app behind sends that it was reached."""
    sent: list[Message] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "reached"})

    async def receive() -> Message:
        pytest.fail("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    door = Admission(app, Models([Full(error)]))  # type: ignore[list-item]
    asyncio.run(door({"type": "http", "path": path}, receive, send))
    return sent


@pytest.mark.parametrize(
    "path",
    ["/v1/predict", "/v2/models/topics/infer", "/v2/models/topics/versions/1/infer"],
)
def test_a_full_queue_refuses_before_the_body_is_read(path: str) -> None:
    start, body = ask(path, FULL)
    assert start["status"] == 429
    assert dict(start["headers"])[b"retry-after"] == b"3"
    assert json.loads(body["body"]) == {"error": f"{FULL}; send it again in 3 s"}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/predict", None),
        ("/v2/models/other/infer", FULL),
        ("/v2/models/topics", FULL),
        ("/healthz", FULL),
        ("/v1/predict", NotReadyError("stopping")),
    ],
)
def test_all_else_is_passed_on(path: str, error: PipeError | None) -> None:
    assert ask(path, error) == [{"type": "reached"}]
