"""Requests that came whole and plain are answered past all that stands before the doors.

Of a request that asks a model which has room, with a key where one is needed, head and body in one
piece and nothing compressed, the middlewares have nothing to refuse or to change, and uvicorn's
messages nothing to tell; they take as long as all else that a single text needs beside its engine.
All other requests go the long way.
"""

import logging
from asyncio import CancelledError, Event
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from pipework.errors import NotReadyError
from serve.admission import ASKED
from serve.answerer import Answerer
from serve.compression import INFER, preferred
from serve.direct import Asking
from serve.failures import failure
from serve.grace import LAST
from serve.observed import REQUEST_ID, Door, begin
from serve.schemas import PREDICT_PATH
from serve.watch import Watch, looked_at

log = logging.getLogger(__name__)
LONG_WAY = frozenset({b"content-encoding", b"transfer-encoding"})
_NOBODY_WAITS = Event()


class _Whole(Request):
    """A request whose body is there."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope)
        self._given = body

    async def body(self) -> bytes:
        """Return it."""
        return self._given


class Exchange:
    """A request and its answer, as uvicorn's connections look at them.

    Attributes:
        response_started, response_complete: whether the answer has been written.
        keep_alive: whether the connection stays after it.
        disconnected: whether the client is gone.
        message_event: for who waits for the body, which is here.
    """

    message_event = _NOBODY_WAITS

    def __init__(self) -> None:
        """Begin without an answer."""
        self.response_started = self.response_complete = self.disconnected = False
        self.keep_alive = True


class Plain:
    """Answers plain requests."""

    def __init__(self, asking: Asking, watch: Watch, body_bytes: int) -> None:
        """Take what answers them, who wants to know of it, and how large a body may be."""
        self._asking = asking
        self._watch = watch
        self._body_bytes = body_bytes

    def takes(self, scope: Scope) -> bool:
        """Whether a request that has room is plain, once its body is there in the same piece."""
        for name, value in scope["headers"]:
            if name in LONG_WAY or (name == b"content-length" and int(value) > self._body_bytes):
                return False
            if name == b"accept-encoding" and scope["path"].endswith(INFER):
                return preferred(value.decode("latin-1")) is None
        return True

    async def answer(self, scope: Scope, body: bytes, send: Callable[[Response], None]) -> None:
        """Answer a request; its task is cancelled where the server stops before."""
        door = Door.V1 if scope["path"] == PREDICT_PATH else Door.V2
        model: Answerer = scope["state"][ASKED]

        observed = begin(door, looked_at(scope["headers"]))
        observed.model, observed.version = model.name, model.version
        try:
            answer = await self._asking.answer(_Whole(scope, body))
            assert answer is not None  # admission knows the same paths
        except CancelledError:
            answer = failure(NotReadyError(LAST))
        except Exception as error:
            log.exception("a request could not be answered")
            answer = failure(error)
        observed.status = str(answer.status_code)
        answer.headers.setdefault(REQUEST_ID, observed.id)
        send(answer)
        self._watch.finish(observed)
