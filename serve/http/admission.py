"""Refuses requests that a full queue would refuse, before their bodies are read.

At twice the load that a server bears, half of what comes is refused: what a refusal costs is taken
from the answers. So a plain request is refused from its head alone, and never becomes a task or
passes through the app; one that is not (percent-encoded, to be continued, the last of its
connection, ...) is refused by the app, before anything else is done for it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import PipeError, TooBusyError
from pipework.serve.http.auth import ApiKeys, KeyNeededError
from pipework.serve.http.errors import failure, worded
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Watch, looked_at
from pipework.serve.request.context import REQUEST_ID, Door, saw_model, seen
from pipework.serve.scheduling.model_protocol import Answerer
from pipework.serve.schemas import PREDICT_PATH

Headers = Sequence[tuple[bytes, bytes]]
INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
PLAIN = re.compile(r"[\w./-]+", re.ASCII)
ASKED = "asked"  # in a request's state: the model that had room for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer: its status, its headers but for those of its body, and its body, JSON."""

    status: int
    headers: Headers
    body: bytes


class Admission:
    """Looks at the heads of requests."""

    def __init__(self, models: Models, keys: ApiKeys, watch: Watch) -> None:
        """Take who is asked, who may ask, and who wants to know of it."""
        self._models = models
        self._keys = keys
        self._watch = watch

    def refusal(self, url: str, headers: Headers, state: dict[str, Any]) -> Refusal | None:
        """Return the answer to a POST that would be refused; it is observed as any other.

        None for all else, as for a model that is not ready or a client without a key: whatever else
        is wrong is told by who reads the request. Where there was room, `state` says so.
        """
        if not PLAIN.fullmatch(url) or (self._keys and not self._knows(headers)):
            return None
        model = _asked(self._models, url)
        busy = None if model is None else _busy(model)
        if model is None or busy is None:
            state[ASKED] = model
            return None
        observed = seen(Door.V1 if url == PREDICT_PATH else Door.V2, looked_at(headers))
        observed.model, observed.version = model.name, model.version
        status, text, named = worded(busy)
        observed.status = str(status)
        self._watch.finish(observed)
        named[REQUEST_ID] = observed.id
        return Refusal(
            status=status,
            headers=[(name.encode(), value.encode()) for name, value in named.items()],
            body=json.dumps({"error": text}).encode(),
        )

    def _knows(self, headers: Headers) -> bool:
        named = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        try:
            self._keys.check(named)
        except KeyNeededError:
            return False
        return True


class RefuseBusy:
    """ASGI middleware: answers 429 for a model whose queue is full, without reading the body."""

    def __init__(self, app: ASGIApp, models: Models) -> None:
        """Wrap an app."""
        self._app = app
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it would be refused."""
        busy = self._looked(scope) if scope["type"] == "http" else None
        if busy is None:
            await self._app(scope, receive, send)
            return
        await failure(busy)(scope, receive, send)

    def _looked(self, scope: Scope) -> TooBusyError | None:
        had_room: Answerer | None = scope.get("state", {}).get(ASKED)
        model = had_room or _asked(self._models, scope["path"])
        if model is None:
            return None
        saw_model(model.name, model.version)
        return None if had_room else _busy(model)


def _asked(models: Models, path: str) -> Answerer | None:
    name = version = ""
    if path != PREDICT_PATH:
        asked = INFER.fullmatch(path)
        if asked is None:
            return None
        name, version = asked[1], asked[2] or ""
    try:
        return models.find(name, version)
    except PipeError:  # whatever is wrong is told by who reads the request
        return None


def _busy(model: Answerer) -> TooBusyError | None:
    if not model.ready:  # who reads the request refuses it, and counts that
        return None
    try:
        model.check_room()
    except TooBusyError as error:
        return error.with_traceback(None)  # whose frames hold it: garbage that has to be found
    except PipeError:
        return None
    return None
