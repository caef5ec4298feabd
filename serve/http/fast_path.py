"""Fast path: answers simple requests without the middlewares and without ASGI messages.

A request is simple if it was admitted, has a valid API key, a Content-Length and no compression.
The middlewares would not change or reject it, but each of them takes time. All other requests, and
requests whose body does not arrive completely, use the normal path through the app.
"""

import logging
from asyncio import CancelledError, Event, get_running_loop
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from pipework.errors import NotReadyError
from pipework.serve.http.admission import ADMITTED_MODEL
from pipework.serve.http.compression import INFER, preferred_encoding
from pipework.serve.http.direct_routes import DirectRoutes
from pipework.serve.http.disconnect import ClientDisconnectedError
from pipework.serve.http.errors import error_response
from pipework.serve.http.shutdown import SHUTDOWN_MESSAGE
from pipework.serve.observability.observers import Observers, context_headers
from pipework.serve.request.context import (
    REQUEST_ID,
    Endpoint,
    RequestContext,
    activate,
    new_context,
)
from pipework.serve.scheduling.model_protocol import ServedModel
from pipework.serve.schemas import PREDICT_PATH

log = logging.getLogger(__name__)
NORMAL_PATH_HEADERS = frozenset({b"content-encoding", b"transfer-encoding"})
MAX_BODY_BYTES = 64 * 2**10  # larger bodies need flow control
_UNUSED_EVENT = Event()


class EndOfTick:
    """Runs callbacks at the end of the current tick of the event loop, in order."""

    # All requests of a batch finish in one tick. Their responses are sent together at its end,
    # because this wakes a client process less often than separate sends.

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """Run a callback at the end of this tick, even if others fail.

        A callback added by another callback runs at the end of the next tick.
        """
        self._callbacks.append(callback)
        if len(self._callbacks) == 1:
            get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except BaseException:  # the other callbacks must still run
                log.exception("a callback at the end of a tick failed")


class _BufferedRequest(Request):
    """A request whose body has been received."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope)
        self._received = body

    async def body(self) -> bytes:
        """Return the body."""
        return self._received


class FastPathCycle:
    """Replaces uvicorn's `RequestResponseCycle` for a request on the fast path.

    Attributes:
        response_started, response_complete: whether the response has been written.
        keep_alive: whether the connection stays open after the response.
        disconnected: whether the client has disconnected.
        message_event: unused, because no code waits for the body.
    """

    message_event = _UNUSED_EVENT

    def __init__(self) -> None:
        self.response_started = self.response_complete = self.disconnected = False
        self.keep_alive = True


@dataclass(kw_only=True, slots=True, eq=False)
class PendingRequest:
    """A request on the fast path whose body is being received."""

    scope: Scope
    context: RequestContext
    body: bytearray = field(default_factory=bytearray)


class FastPath:
    """Answers simple requests."""

    def __init__(self, routes: DirectRoutes, observers: Observers, body_bytes: int) -> None:
        self._routes = routes
        self._observers = observers
        self._body_bytes = min(body_bytes, MAX_BODY_BYTES)
        self._end_of_tick = EndOfTick()

    def begin(self, scope: Scope) -> PendingRequest | None:
        """Start a request on the fast path; None if it must take the normal path."""
        model: ServedModel | None = scope["state"].get(ADMITTED_MODEL)
        if model is None or not self._is_simple(scope):
            return None
        endpoint = Endpoint.V1 if scope["path"] == PREDICT_PATH else Endpoint.V2
        context = new_context(endpoint, context_headers(scope["headers"]))
        context.model, context.version = model.name, model.version
        return PendingRequest(scope=scope, context=context)

    def _is_simple(self, scope: Scope) -> bool:
        compressible = scope["path"].endswith(INFER)
        for name, value in scope["headers"]:
            if name in NORMAL_PATH_HEADERS or (
                name == b"content-length" and int(value) > self._body_bytes
            ):
                return False
            if (
                compressible
                and name == b"accept-encoding"
                and preferred_encoding(value.decode("latin-1"))
            ):
                return False
        return True

    async def answer(self, request: PendingRequest, send: Callable[[Response], bool]) -> None:
        """Answer a request whose body is complete, at the end of the tick.

        If the task is cancelled, because the server stops, the response is an error.

        Args:
            request: the request.
            send: writes a response; returns False if the client has disconnected.
        """
        context = request.context
        activate(context)
        try:
            response = await self._routes.answer(
                _BufferedRequest(request.scope, bytes(request.body))
            )
            assert response is not None  # admission has matched the path
        except CancelledError:
            response = error_response(NotReadyError(SHUTDOWN_MESSAGE))
        except BaseException as error:  # a panic of a Rust library is no Exception
            log.exception("a request failed")
            response = error_response(RuntimeError(repr(error)))
        context.status = str(response.status_code)
        response.headers.setdefault(REQUEST_ID, context.id)
        self._end_of_tick.add(partial(self._send, context, partial(send, response)))

    def _send(self, context: RequestContext, send: Callable[[], bool]) -> None:
        # The callback runs in the context of the first request of the tick.
        activate(context)
        try:
            if not send():
                context.status = str(ClientDisconnectedError.http_status)
        finally:
            context.end()
            self._end_of_tick.add(partial(self._observers.finish, context))
