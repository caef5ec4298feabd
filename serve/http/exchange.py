"""One HTTP request and its response."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from pipework.serve.http.request_bodies import HeldBytes, RequestMemory
from pipework.serve.http.request_parser import Headers, RequestHead
from pipework.serve.models.leases import Lease
from pipework.serve.models.registry import Models
from pipework.serve.request.context import RequestContext
from pipework.serve.scheduling.loop_bridge import LARGE_WORK
from pipework.serve.scheduling.predictor import Predictor

T = TypeVar("T")
CLOSE = (b"connection", b"close")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class ServerState(Protocol):
    """The part of uvicorn's server state that connections use."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    default_headers: Headers


class ModelLease:
    """Keeps the model version of a request open until `release`."""

    def __init__(self, models: Models, context: RequestContext) -> None:
        self._models = models
        self._context = context
        self._lease: Lease | None = None
        self._model: Predictor | None = None

    def acquire(self, name: str = "", version: str = "") -> Predictor:
        """Return the version that was acquired before; look it up if the names do not match.

        Raises the errors of `Models.lease`.
        """
        model = self._model
        if model and name in {"", model.name} and version in {"", model.version}:
            return model
        self.release()
        self._context.model = self._context.version = ""
        lease = self._models.lease(name, version)
        self._model = model = lease.__enter__()
        self._lease = lease
        self._context.model, self._context.version = model.name, model.version
        return model

    def release(self) -> None:
        """Release the version; further calls do nothing."""
        lease, self._lease, self._model = self._lease, None, None
        if lease is not None:
            lease.__exit__()


class InferenceRequest(Request):
    """A complete request to an inference endpoint.

    Attributes:
        fields: the last value of each header, with names in lower case.
        model: the model version of the request.
        memory: the memory of the body and its texts, which the endpoint may correct.
    """

    # A subclass of Request, because FastAPI documents the parameters of endpoints.

    def __init__(self, exchange: "Exchange", content: bytes) -> None:
        super().__init__({"type": "http", "headers": exchange.head.headers})
        self._content = content
        self.fields = exchange.head.fields
        self.model = exchange.model
        self.memory = exchange.processed

    async def read(self, function: Callable[[bytes], T]) -> T:
        """Return the result of a function for the decompressed body, which is then dropped.

        Raises:
            TooBusyError: too many large bodies are waiting to be read.
        """
        content, self._content = self._content, b""
        LARGE_WORK.check_room(len(content))
        return await LARGE_WORK.run(len(content), partial(function, content))


class Exchange:
    """A request that is being received or answered.

    Attributes:
        head: the head of the request.
        context: the measurements of the request.
        model: the model version, for inference requests.
        route: the endpoint and its path parameters; None if the ASGI app answers.
        body: the part of the body that has been received.
        received: memory of the body while it is received.
        processed: memory of the decompressed body and of its texts, until the response is sent.
        complete: whether the body is complete.
        expects_continue: whether the client waits for an interim response before it sends the body.
        response: the response, once it is known. A rejected request has one before its body.
        closes: whether the connection is closed after the response.
        delays_next: whether the next request of the connection is read later.
        disconnected: whether the client has disconnected.
    """

    def __init__(
        self,
        head: RequestHead,
        context: RequestContext,
        model: ModelLease,
        memory: RequestMemory,
        route: tuple[Any, Mapping[str, str]] | None = None,
    ) -> None:
        self.head = head
        self.context = context
        self.model = model
        self.route = route
        self.body = bytearray()
        self.received, self.processed = HeldBytes(memory.received), HeldBytes(memory.processed)
        self.complete = self.disconnected = False
        self.expects_continue = head.fields.get(b"expect", b"").lower() == b"100-continue"
        self.closes = not head.keep_alive
        self.delays_next = False
        self.response: Response | None = None

    def response_bytes(self, headers: Headers) -> bytes:
        """Return the response, with headers before its own."""
        response = self.response
        assert response is not None
        lines = map(b": ".join, (*headers, *response.raw_headers))
        body = b"" if self.head.method == "HEAD" else bytes(response.body)
        return STATUS_LINES[response.status_code] + b"\r\n".join((*lines, b"", body))
