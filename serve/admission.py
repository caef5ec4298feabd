"""Refuses requests that a full queue would refuse, before anything is done for them.

At twice the load that a server bears, half of what comes is refused: what a refusal costs is taken
from the answers.
"""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import PipeError, TooBusyError
from serve.answerer import Answerer
from serve.failures import failure
from serve.models import Models
from serve.observed import saw_model
from serve.schemas import PREDICT_PATH

INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


class Admission:
    """ASGI middleware: answers 429 for a model whose queue is full, without reading the body."""

    def __init__(self, app: ASGIApp, models: Models) -> None:
        """Wrap an app."""
        self._app = app
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it would be refused."""
        busy = self._busy(scope) if scope["type"] == "http" else None
        if busy is None:
            await self._app(scope, receive, send)
            return
        await failure(busy)(scope, receive, send)

    def _busy(self, scope: Scope) -> TooBusyError | None:
        name = version = ""
        if scope["path"] != PREDICT_PATH:
            asked = INFER.fullmatch(scope["path"])
            if asked is None:
                return None
            name, version = asked[1], asked[2] or ""
        try:
            model = self._models.find(name, version)
            saw_model(model.name, model.version)
            # Of one that is not ready, who reads the request refuses it, and counts that.
            return _refusal(model) if model.ready else None
        except PipeError:  # whatever else is wrong is told by who reads the request
            return None


def _refusal(model: Answerer) -> TooBusyError | None:
    try:
        model.check_room()
    except TooBusyError as error:
        return error.with_traceback(None)  # whose frames hold it: garbage that has to be found
    return None
