"""Base class of targets over HTTP; subclasses define the request and response formats."""

import json
import ssl
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from pipework.benchmarks.targets.address import TargetAddress
from pipework.benchmarks.targets.http_connections import (
    ConnectionLostError,
    ConnectionPool,
    post_request,
)
from pipework.benchmarks.targets.seam import TEXTS_HINT, URL_HINT, Caller, Target
from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.wire.schemas import PREDICT_PATH, TextInput

BAD_REQUEST_STATUSES = (400, 413, 422)
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTarget(Target):
    """Target that receives POST requests."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Path of its endpoint."""

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
        self._connections = ConnectionPool(address.host, address.port, address.tls(), connections)

    async def send(self, request: bytes) -> str | None:
        """Send a request and wait; return None on success, else the kind of error."""
        try:
            reply = await self._connections.send(request)
        except (ConnectionLostError, OSError) as error:
            return _error_kind(error)
        return None if reply.status == HTTPStatus.OK else f"HTTP {reply.status}"

    async def fetch(self, request: bytes) -> bytes:
        """Send a request and return the response body.

        Raises:
            PipeError: no server responds, or it refuses the request; the message has the reason.
        """
        try:
            reply = await self._connections.send(request)
        except (ConnectionLostError, OSError) as error:
            message = f"no response from {self._url}: {_error_kind(error)}"
            raise PipeError(message, URL_HINT) from error
        if reply.status == HTTPStatus.OK:
            return reply.body
        why = f"HTTP {reply.status}: {_error_text(reply.body)}"
        message = f"{self._url}{self._path} refused the first request: {why}"
        raise PipeError(message, TEXTS_HINT if reply.status in BAD_REQUEST_STATUSES else URL_HINT)

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()


def _error_kind(error: Exception) -> str:
    match error:
        case ConnectionLostError() | ConnectionResetError() | BrokenPipeError():
            return "connection dropped"
        case ssl.SSLError():
            return "TLS failed"
        case _:
            return "no connection"


def _error_text(body: bytes) -> str:
    with suppress(ValueError, LookupError, TypeError):
        return " ".join(str(json.loads(body)["error"]).split())[:200]
    return "no explanation"


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
        """Return the model name of a response to `count` texts."""
        with suppress(ValueError, LookupError, TypeError):
            content = json.loads(response)
            if len(content["predictions"]) == count:
                return str(content["model"])
        expected = f"{count} predictions"
        raise self.unexpected_response(expected)
