"""Plain requests are answered past all that stands before the doors.

Of a request that asks a model which has room, with a key where one is needed, of known size and
nothing compressed, the middlewares have nothing to refuse or to change, and uvicorn's messages have
nothing to tell, but each takes its time. Whatever else comes goes the long way, as does what stops
halfway.
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
from pipework.serve.http.admission import ASKED
from pipework.serve.http.compression import INFER, preferred
from pipework.serve.http.direct_routes import Asking
from pipework.serve.http.disconnect import ClientGoneError
from pipework.serve.http.errors import failure
from pipework.serve.http.shutdown import LAST
from pipework.serve.observability.observers import Watch, looked_at
from pipework.serve.request.context import REQUEST_ID, Door, Observed, seen, work_on
from pipework.serve.scheduling.model_protocol import Answerer
from pipework.serve.schemas import PREDICT_PATH

# The requests of a batch are all answered in one turn. Sent one after the other at its end, their
# answers wake clients of one process less often than each by itself; the first waits until the others
# of its batch are decided.


class Turn:
    """Things to do at the end of this turn, in their order. For one event loop."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._left: list[Callable[[], None]] = []

    def at_end(self, what: Callable[[], None]) -> None:
        """Do something then, whatever becomes of the rest; from there, at the end of the next."""
        self._left.append(what)
        if len(self._left) == 1:
            get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        left, self._left = self._left, []
        for what in left:
            try:
                what()
            except BaseException:  # who else waits is not to wait for ever
                log.exception("what was left to the end of a turn failed")


log = logging.getLogger(__name__)
LONG_WAY = frozenset({b"content-encoding", b"transfer-encoding"})
SMALL = 64 * 2**10  # bytes of a body; more might have to wait to be read
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


@dataclass(kw_only=True, slots=True, eq=False)
class Pending:
    """A plain request whose body is coming: its scope of ASGI, and what is seen of it."""

    scope: Scope
    observed: Observed
    body: bytearray = field(default_factory=bytearray)


class Plain:
    """Answers plain requests."""

    def __init__(self, asking: Asking, watch: Watch, body_bytes: int) -> None:
        """Take what answers them, who wants to know of it, and how large a body may be."""
        self._asking = asking
        self._watch = watch
        self._body_bytes = min(body_bytes, SMALL)
        self._turn = Turn()

    def begin(self, scope: Scope) -> Pending | None:
        """Return a request with this head as a plain one, None where it is not."""
        model: Answerer | None = scope["state"].get(ASKED)
        if model is None or not self._is_plain(scope):
            return None
        door = Door.V1 if scope["path"] == PREDICT_PATH else Door.V2
        observed = seen(door, looked_at(scope["headers"]))
        observed.model, observed.version = model.name, model.version
        return Pending(scope=scope, observed=observed)

    def _is_plain(self, scope: Scope) -> bool:
        packed = scope["path"].endswith(INFER)  # whose answer may be wanted compressed
        for name, value in scope["headers"]:
            if name in LONG_WAY or (name == b"content-length" and int(value) > self._body_bytes):
                return False
            if packed and name == b"accept-encoding" and preferred(value.decode("latin-1")):
                return False
        return True

    async def answer(self, asked: Pending, send: Callable[[Response], bool]) -> None:
        """Answer a request whose body is there; cancelled where the server stops before.

        It is sent at the end of this turn of the loop.

        Args:
            asked: the request.
            send: writes an answer, and returns whether somebody was there to read it.
        """
        observed = asked.observed
        work_on(observed)
        try:
            answer = await self._asking.answer(_Whole(asked.scope, bytes(asked.body)))
            assert answer is not None  # admission knows the same paths
        except CancelledError:
            answer = failure(NotReadyError(LAST))
        except BaseException as error:  # what a library panics with, too
            log.exception("a request could not be answered")
            answer = failure(RuntimeError(repr(error)))
        observed.status = str(answer.status_code)
        answer.headers.setdefault(REQUEST_ID, observed.id)
        self._turn.at_end(partial(self._send, observed, partial(send, answer)))

    def _send(self, observed: Observed, send: Callable[[], bool]) -> None:
        work_on(observed)  # and not on what was asked first of all that is sent now
        try:
            if not send():
                observed.status = str(ClientGoneError.http_status)
        finally:
            observed.end()
            self._turn.at_end(partial(self._watch.finish, observed))
