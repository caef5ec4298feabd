"""What all targets over HTTP share. A subclass says what a request and an answer hold."""

import json
import re
import ssl
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from pipework.benchmarks.targets.address import Address, Addressed
from pipework.benchmarks.targets.http_connections import (
    ConnectionLostError,
    Connections,
    Reply,
    request,
)
from pipework.benchmarks.targets.seam import Caller, Spent, Wire
from pipework.data.examples import Example
from pipework.errors import PipeError

REFUSED = (400, 413, 422)
HINT_TEXTS = "send other texts with --file, or fewer at once with --batch"
HINT_URL = "give the URL of a server that `pipe serve RUN` started"
STAGE = re.compile(rb"([\w-]+);dur=([0-9.]+)")
LOST, NOT_FOUND, NOT_TRUSTED = "connection dropped", "no connection", "TLS failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTarget(Addressed):
    """A Target asked by POST, with JSON or a body of its own."""

    @property
    def wire(self) -> Wire:
        """What its requests are made of."""
        return Wire.HTTP

    @property
    @abstractmethod
    def path(self) -> str:
        """Where it is asked."""

    @abstractmethod
    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a whole request."""

    @abstractmethod
    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the model that gave an answer to `count` texts."""

    def open(self, connections: int) -> Caller:
        """Return a caller of at most so many connections."""
        return HttpCaller(self.address, self.path, connections)

    def post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return a whole request with this body."""
        known = {**headers}
        if self.address.credentials:
            known["Authorization"] = self.address.credentials
        return request(self.address.at, self.path, body, known)

    def wrong(self, expected: str) -> PipeError:
        """Return the error of an answer that is not what was expected."""
        asked = f"{self.address.scheme}://{self.address.at}{self.path}"
        return PipeError(f"{asked} answered, but not with the {expected} expected", HINT_URL)


class HttpCaller:
    """Keep-alive connections to an HTTP server."""

    def __init__(self, address: Address, path: str, connections: int) -> None:
        """Open none yet."""
        self._url = f"{address.scheme}://{address.at}"
        self._path = path
        self.connections = Connections(address.host, address.port, address.tls(), connections)
        self._timed = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)

    async def ask(self, request: bytes) -> str | None:
        """Send a request; return None once it is answered with success, else the kind of error."""
        try:
            reply = await self.connections.ask(request)
        except (ConnectionLostError, OSError) as error:
            return _kind(error)
        if reply.timing:
            self._count(reply.timing)
        return None if reply.status == HTTPStatus.OK else f"HTTP {reply.status}"

    async def answer(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            PipeError: no server, or one that refuses; the message says why.
        """
        reply = await self._reply(request)
        if reply.status == HTTPStatus.OK:
            return reply.body
        why = f"HTTP {reply.status}: {_said(reply.body)}"
        message = f"{self._url}{self._path} refused the first request: {why}"
        raise PipeError(message, HINT_TEXTS if reply.status in REFUSED else HINT_URL)

    async def spent(self) -> Spent:
        """Return what the answers said, each by its header Server-Timing.

        https://www.w3.org/TR/server-timing/
        """
        return Spent(requests=self._timed, seconds={**self._seconds})

    async def close(self) -> None:
        """Close the connections."""
        self.connections.close()

    async def _reply(self, request: bytes) -> Reply:
        try:
            return await self.connections.ask(request)
        except (ConnectionLostError, OSError) as error:
            message = f"no server answers at {self._url}: {_kind(error)}"
            raise PipeError(message, HINT_URL) from error

    def _count(self, timing: bytes) -> None:
        self._timed += 1
        for stage, milliseconds in STAGE.findall(timing):
            self._seconds[stage.decode()] += float(milliseconds) / 1000


def _kind(error: Exception) -> str:
    match error:
        case ConnectionLostError():
            return LOST
        case ssl.SSLError():
            return NOT_TRUSTED
        case ConnectionResetError() | BrokenPipeError():
            return LOST
        case _:
            return NOT_FOUND


def _said(body: bytes) -> str:
    with suppress(ValueError, LookupError, TypeError):
        return " ".join(str(json.loads(body)["error"]).split())[:200]
    return "no explanation"
