"""Rejects requests to a model with a full queue before their bodies are read.

Under overload many requests are rejected, so a rejection must cost little. A simple request is
rejected by the connection, from its head, without a task and without the app. Other requests
(percent-encoded path, Expect: 100-continue, last request of a connection, ...) are rejected by a
middleware of the app.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import PipeError, TooBusyError
from pipework.serve.http.auth import ApiKeys, UnauthorizedError
from pipework.serve.http.errors import error_parts, error_response
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers, context_headers
from pipework.serve.request.context import REQUEST_ID, Endpoint, new_context, set_model
from pipework.serve.scheduling.model_protocol import ServedModel
from pipework.serve.schemas import PREDICT_PATH

Headers = Sequence[tuple[bytes, bytes]]
INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
SIMPLE_URL = re.compile(r"[\w./-]+", re.ASCII)
ADMITTED_MODEL = "admitted_model"  # in the state of an ASGI scope: the model with queue space


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An error response. `headers` excludes those of the body; `body` is JSON."""

    status: int
    headers: Headers
    body: bytes


class Admission:
    """Rejects requests from their heads."""

    def __init__(self, models: Models, keys: ApiKeys, observers: Observers) -> None:
        self._models = models
        self._keys = keys
        self._observers = observers

    def refusal(self, url: str, headers: Headers, state: dict[str, Any]) -> Refusal | None:
        """Return the response to a POST request that must be rejected, and observe the request.

        Returns None for all other requests, including those to a model that is not ready or without
        a valid key: the app reports these errors. If the queue has space, the model is stored in
        `state`.
        """
        if not SIMPLE_URL.fullmatch(url) or (self._keys and not self._has_key(headers)):
            return None
        model = _target_model(self._models, url)
        error = None if model is None else _queue_full_error(model)
        if model is None or error is None:
            state[ADMITTED_MODEL] = model
            return None
        endpoint = Endpoint.V1 if url == PREDICT_PATH else Endpoint.V2
        context = new_context(endpoint, context_headers(headers))
        context.model, context.version = model.name, model.version
        status, text, error_headers = error_parts(error)
        context.status = str(status)
        self._observers.finish(context)
        error_headers[REQUEST_ID] = context.id
        return Refusal(
            status=status,
            headers=[(name.encode(), value.encode()) for name, value in error_headers.items()],
            body=json.dumps({"error": text}).encode(),
        )

    def _has_key(self, headers: Headers) -> bool:
        decoded = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        try:
            self._keys.check(decoded)
        except UnauthorizedError:
            return False
        return True


class AdmissionMiddleware:
    """ASGI middleware that answers 429 if the queue is full, without reading the body."""

    def __init__(self, app: ASGIApp, models: Models) -> None:
        self._app = app
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or answer 429."""
        error = self._check(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        await error_response(error)(scope, receive, send)

    def _check(self, scope: Scope) -> TooBusyError | None:
        admitted: ServedModel | None = scope.get("state", {}).get(ADMITTED_MODEL)
        model = admitted or _target_model(self._models, scope["path"])
        if model is None:
            return None
        set_model(model.name, model.version)
        return None if admitted else _queue_full_error(model)


def _target_model(models: Models, path: str) -> ServedModel | None:
    name = version = ""
    if path != PREDICT_PATH:
        match = INFER.fullmatch(path)
        if match is None:
            return None
        name, version = match[1], match[2] or ""
    try:
        return models.find(name, version)
    except PipeError:  # the endpoint reports it
        return None


def _queue_full_error(model: ServedModel) -> TooBusyError | None:
    if not model.ready:  # the endpoint rejects and counts it
        return None
    try:
        model.check_room()
    except TooBusyError as error:
        return error.with_traceback(None)  # avoid a reference cycle through the frames
    except PipeError:
        return None
    return None
