"""Base class of targets over HTTP; subclasses define the request and response formats."""

import json
import re
import ssl
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from pipework.benchmarks.targets.address import AddressedTarget, TargetAddress
from pipework.benchmarks.targets.http_connections import (
    ConnectionLostError,
    ConnectionPool,
    HttpResponse,
    post_request,
)
from pipework.benchmarks.targets.seam import Caller, StageTimes, WireProtocol
from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.wire.schemas import PREDICT_PATH, TextInput

BAD_REQUEST_STATUSES = (400, 413, 422)
TEXTS_HINT = "send other texts with --file, or fewer texts per request with --batch"
URL_HINT = "expected the URL of a running server, for example one started by pipe serve RUN"
SERVER_TIMING = re.compile(rb"([\w-]+);dur=([0-9.]+)")
CONNECTION_DROPPED, NO_CONNECTION, TLS_FAILED = "connection dropped", "no connection", "TLS failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTarget(AddressedTarget):
    """Target that receives POST requests."""

    @property
    def wire_protocol(self) -> WireProtocol:
        """Protocol of its requests."""
        return WireProtocol.HTTP

    @property
    @abstractmethod
    def path(self) -> str:
        """Path of its endpoint."""

    @abstractmethod
    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a complete serialised request."""

    @abstractmethod
    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts."""

    def open(self, connections: int) -> Caller:
        """Return a caller with at most this many connections."""
        return HttpCaller(self.address, self.path, connections)

    def post(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return a complete POST request with this body."""
        all_headers = {**headers}
        if self.address.credentials:
            all_headers["Authorization"] = self.address.credentials
        return post_request(self.address.host_port, self.path, body, all_headers)

    def unexpected_response(self, expected: str) -> PipeError:
        """Return the error for a response without the expected content."""
        url = f"{self.address.scheme}://{self.address.host_port}{self.path}"
        return PipeError(f"{url}: expected a response with {expected}", URL_HINT)


class HttpCaller:
    """Sends requests over keep-alive connections to an HTTP server."""

    def __init__(self, address: TargetAddress, path: str, connections: int) -> None:
        """Create the caller; connections are opened on demand."""
        self._url = f"{address.scheme}://{address.host_port}"
        self._path = path
        self.connections = ConnectionPool(address.host, address.port, address.tls(), connections)
        self._timed = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)

    async def send(self, request: bytes) -> str | None:
        """Send a request and wait; return None on success, else the kind of error."""
        try:
            reply = await self.connections.send(request)
        except (ConnectionLostError, OSError) as error:
            return _error_kind(error)
        if reply.timing:
            self._count(reply.timing)
        return None if reply.status == HTTPStatus.OK else f"HTTP {reply.status}"

    async def fetch(self, request: bytes) -> bytes:
        """Send a request and return the response body.

        Raises:
            PipeError: no server responds, or it refuses the request; the message has the reason.
        """
        reply = await self._reply(request)
        if reply.status == HTTPStatus.OK:
            return reply.body
        why = f"HTTP {reply.status}: {_error_text(reply.body)}"
        message = f"{self._url}{self._path} refused the first request: {why}"
        raise PipeError(message, TEXTS_HINT if reply.status in BAD_REQUEST_STATUSES else URL_HINT)

    async def stage_times(self) -> StageTimes:
        """Return the stage times collected from the Server-Timing headers of the responses.

        https://www.w3.org/TR/server-timing/
        """
        return StageTimes(requests=self._timed, seconds={**self._seconds})

    async def close(self) -> None:
        """Close the connections."""
        self.connections.close()

    async def _reply(self, request: bytes) -> HttpResponse:
        try:
            return await self.connections.send(request)
        except (ConnectionLostError, OSError) as error:
            message = f"no response from {self._url}: {_error_kind(error)}"
            raise PipeError(message, URL_HINT) from error

    def _count(self, timing: bytes) -> None:
        self._timed += 1
        for stage, milliseconds in SERVER_TIMING.findall(timing):
            self._seconds[stage.decode()] += float(milliseconds) / 1000


def _error_kind(error: Exception) -> str:
    match error:
        case ConnectionLostError():
            return CONNECTION_DROPPED
        case ssl.SSLError():
            return TLS_FAILED
        case ConnectionResetError() | BrokenPipeError():
            return CONNECTION_DROPPED
        case _:
            return NO_CONNECTION


def _error_text(body: bytes) -> str:
    with suppress(ValueError, LookupError, TypeError):
        return " ".join(str(json.loads(body)["error"]).split())[:200]
    return "no explanation"


JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class RestTarget(HttpTarget):
    """Server of `pipe serve`, called by its REST endpoint."""

    @property
    def path(self) -> str:
        """Path of its endpoint."""
        return PREDICT_PATH

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a request with "texts", or with "inputs" for pairs and marked entities."""
        content: object = {"texts": [example.text for example in examples]}
        if any(
            example.text_pair is not None or example.entities is not None for example in examples
        ):
            inputs = (TextInput.of(example).model_dump(exclude_none=True) for example in examples)
            content = {"inputs": [*inputs]}
        return self.post(json.dumps(content, ensure_ascii=False).encode(), JSON)

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts.

        Raises:
            PipeError: the response does not contain `count` predictions.
        """
        with suppress(ValueError, LookupError, TypeError):
            content = json.loads(response)
            if len(content["predictions"]) == count:
                return str(content["model"])
        expected = f"{count} predictions"
        raise self.unexpected_response(expected)
