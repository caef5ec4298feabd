"""Answers HTTP requests. All rules that apply to more than one endpoint are here, in one place.

From the head of a request: API key, look-up of the model, room in its queue, size and encoding of
the body. Then the body is decompressed, the endpoint is called, and the response is compressed.
Every request gets an id; inference requests are passed to the observers.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from pipework.errors import NotReadyError, PipeError
from pipework.serve.http.auth import ApiKeys, is_public
from pipework.serve.http.errors import UnknownPathError, error_response
from pipework.serve.http.exchange import Exchange, InferenceRequest, ModelLease
from pipework.serve.http.request_bodies import (
    COPIES,
    RequestMemory,
    check_body,
    compress,
    decompress,
    too_large_error,
)
from pipework.serve.http.request_parser import HEAD_BYTES, HeadTooLongError, RequestHead
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.serve.request.context import (
    CONTEXT_HEADERS,
    PRIORITY_FIELD,
    REQUEST_ID,
    TIMING,
    RequestOptions,
    activate,
    new_context,
)
from pipework.serve.scheduling.admission import ClientShareError
from pipework.wire.headers import BULK

log = logging.getLogger(__name__)
POST, INFER = "POST", "/infer"
NO_BODY = frozenset({"GET", "HEAD"})  # methods of requests whose body is ignored
SHUTDOWN_MESSAGE = "the server stopped before the request was answered"
CLIENT_DISCONNECTED = "499"  # only counted, because it cannot be sent


class RequestHandler:
    """Answers the requests of all connections.

    Attributes:
        app: the ASGI app that answers all requests but those for inference.
        memory: the memory of all requests.
    """

    def __init__(
        self,
        app: FastAPI,
        routes: Sequence[APIRoute],
        models: Models,
        *,
        keys: ApiKeys,
        observers: Observers,
        memory: RequestMemory,
    ) -> None:
        """Create the handler.

        Args:
            app: answers all other requests, and documents all of them.
            routes: the endpoints that are called without the app, which takes most of the time of
                a small request. Those for POST are for inference, and take an `InferenceRequest`
                and the path parameters. Those for GET are for health, and have no parameters.
            models: the served models.
            keys: the API keys.
            observers: the observers of inference requests.
            memory: size limits of a body and of all bodies.
        """
        self.app = app
        self._routes = [
            (route.path_regex.fullmatch, route.endpoint)
            for route in routes
            if route.methods == {POST}
        ]
        self._health = {r.path: r.endpoint for r in routes if r.methods == {"GET"}}
        self._models = models
        self._keys = keys
        self._observers = observers
        self.memory = memory

    def begin(self, head: RequestHead, client: str = "") -> Exchange:
        """Start a request of a client. It has a response if it is rejected from its head."""
        exchange = self._exchange(head)
        exchange.context.client = client
        try:
            self._check_head(exchange)
            if exchange.route is not None:
                self._admit(exchange)
            if head.method not in NO_BODY:
                check_body(head.fields, self.memory.body_bytes)
        except Exception as error:  # noqa: BLE001  (a bug must not close the connection)
            self.reject(exchange, error)
        return exchange

    def begin_rejected(self, error: Exception, head: RequestHead | None = None) -> Exchange:
        """Start a request with an error as its response and close the connection after it."""
        exchange = self._exchange(head or RequestHead())
        exchange.closes = True
        self.reject(exchange, error)
        return exchange

    def accepts(self, exchange: Exchange) -> bool:
        """Return whether the body that has been received is within limits; else reject it."""
        size = len(exchange.body)
        try:
            if size > self.memory.body_bytes:
                raise too_large_error(self.memory.body_bytes)
            exchange.received.resize(size)
        except PipeError as error:
            self.reject(exchange, error)
            return False
        return True

    def reject(self, exchange: Exchange, error: BaseException) -> None:
        """Set an error as the response, drop the body, and log a bug."""
        exchange.body.clear()
        exchange.received.resize(0)
        if not isinstance(error, PipeError | HTTPException):
            log.error("a request failed", exc_info=error)
            error = RuntimeError(repr(error))
        response = error_response(error)
        # A connection with keys may be that of a proxy: its next request may have another key.
        exchange.delays_next = isinstance(error, ClientShareError) and not self._keys
        exchange.context.status = str(response.status_code)
        response.headers[REQUEST_ID] = exchange.context.id
        exchange.response = response

    async def answer(self, exchange: Exchange) -> None:
        """Set the response to a complete request; none if the client has disconnected.

        If the task is cancelled, because the server stops, the response is an error.
        """
        activate(exchange.context)
        try:
            exchange.response = response = await self._response(exchange)
            exchange.context.status = str(response.status_code)
            response.headers[REQUEST_ID] = exchange.context.id
        except asyncio.CancelledError:
            self.reject(exchange, NotReadyError(SHUTDOWN_MESSAGE))
        except BaseException as error:  # noqa: BLE001  (a panic of a Rust library is no Exception)
            if not exchange.disconnected:  # errors of cancelled work do not matter
                self.reject(exchange, error)

    def finish(self, exchange: Exchange) -> None:
        """End a request after its response was sent or the client has disconnected."""
        exchange.model.release()
        exchange.received.resize(0)
        exchange.processed.resize(0)
        if exchange.disconnected:
            exchange.context.status = CLIENT_DISCONNECTED
        self._observers.finish(exchange.context)

    def _exchange(self, head: RequestHead) -> Exchange:
        headers = {
            name.decode(): value.decode("latin-1")
            for name in CONTEXT_HEADERS
            if (value := head.fields.get(name)) is not None
        }
        route = self._match(head.path)
        endpoint = None if route is None else head.path.split("/")[1]
        context = new_context(endpoint, headers)
        context.status = "500"
        model = ModelLease(self._models, context)
        return Exchange(head, context, model, self.memory, route if head.method == POST else None)

    def _check_head(self, exchange: Exchange) -> None:
        head = exchange.head
        if head.size > HEAD_BYTES:
            exchange.closes = True
            raise HeadTooLongError
        if self._keys and not is_public(head.path):
            exchange.context.client = self._keys.check(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers
            )
        if not head.path.isprintable():
            message = "expected a path of printable characters, found a control character"
            raise UnknownPathError(message)

    def _match(self, path: str) -> tuple[Any, Mapping[str, str]] | None:
        for fullmatch, endpoint in self._routes:
            if match := fullmatch(path):
                return endpoint, match.groupdict()
        return None

    def _admit(self, exchange: Exchange) -> None:
        """Look up the model of a request and check that its queue has room."""
        assert exchange.route is not None
        _, parameters = exchange.route
        if parameters or len(self._models.leases.names) == 1:  # else the body has the name
            bulk = exchange.head.fields.get(PRIORITY_FIELD) == BULK.encode()
            options = RequestOptions(bulk=bulk, client=exchange.context.client)
            exchange.model.acquire(**parameters).check_room(options)

    async def _response(self, exchange: Exchange) -> Response:
        head = exchange.head
        body = bytes(exchange.body)
        exchange.body.clear()
        if head.method not in NO_BODY:
            body = await decompress(body, head.fields, self.memory.body_bytes)
        exchange.processed.resize(COPIES * len(body))
        exchange.received.resize(0)
        if head.method in NO_BODY and (check := self._health.get(head.path)):
            return Response((await check()).model_dump_json(), media_type="application/json")
        if exchange.route is None:
            return await call_app(self.app, head, body)
        endpoint, parameters = exchange.route
        request = InferenceRequest(exchange, body)
        del body  # the endpoint drops it too
        response: Response = await endpoint(request, **parameters)
        if (timings := exchange.context.timings) is not None:
            response.headers[TIMING] = timings.server_timing()
        return await compress(response, head.fields) if head.path.endswith(INFER) else response


async def call_app(app: ASGIApp, head: RequestHead, body: bytes) -> Response:
    """Return the complete response of an ASGI app.

    Raises:
        RuntimeError: the app sent no response.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "http",
        # The connection omits the body of the response to HEAD, so that endpoints need only GET.
        "method": "GET" if head.method == "HEAD" else head.method,
        "path": head.path,
        "raw_path": head.path.encode(),
        "root_path": "",
        "query_string": head.query,
        "headers": head.headers,
    }
    unread: list[Message] = [{"type": "http.request", "body": body}]
    sent: list[Message] = []

    async def receive() -> Message:
        # After the body the next message would be the disconnect; it cancels the task instead.
        return unread.pop() if unread else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        message = f"no response to {head.method} {head.path}"
        raise RuntimeError(message)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    response = Response(content, sent[0]["status"])  # its only header is the length, if it has one
    headers = [header for header in sent[0]["headers"] if header[0] != b"content-length"]
    response.raw_headers = [*headers, *response.raw_headers]
    return response
