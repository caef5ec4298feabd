"""Where a client finds its server, and how it asks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from pipework.closeable import Closing
from pipework.errors import ConfigError, PipeError
from pipework.serve.client.transport import refusal, silent, unreachable
from pipework.serve.http.headers import BULK, PRIORITY, TIMEOUT
from pipework.serve.schemas import ErrorResponse

URL = re.compile(
    r"(?P<scheme>https?|grpcs?)://(?P<host>[^/?#@\s]+)"
    r"(/v2/models/(?P<model>[^/?#\s]+)(/versions/(?P<version>[^/?#\s]+))?)?/?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A server, and the model that its URL names.

    Attributes:
        scheme: http, https, grpc or grpcs.
        host: with its port.
        model: "" where the URL names none.
        version: of the model; "" for the newest.
    """

    scheme: str
    host: str
    model: str = ""
    version: str = ""

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL, as http://HOST:PORT or grpc://HOST:PORT/v2/models/NAME/versions/VERSION.

        Raises:
            ConfigError: it is none.
        """
        found = URL.fullmatch(url)
        if found is None:
            message = f"{url}: expected http://, https://, grpc:// or grpcs:// and HOST:PORT"
            raise ConfigError(message, "a model is named behind it: /v2/models/NAME")
        return cls(**{name: value or "" for name, value in found.groupdict().items()})

    @property
    def url(self) -> str:
        """The URL without a model."""
        return f"{self.scheme}://{self.host}"

    @property
    def grpc(self) -> bool:
        """Whether the server is asked by gRPC."""
        return self.scheme.startswith("grpc")

    @property
    def secure(self) -> bool:
        """Whether it is asked by TLS."""
        return self.scheme.endswith("s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manner:
    """How a client asks.

    Attributes:
        timeout_s: how long to wait for a connection, and for an answer. The server is told.
        key: an API key, or "".
        bulk: whether requests of others go first.
    """

    timeout_s: float
    key: str = ""
    bulk: bool = False


M = TypeVar("M", bound=BaseModel)


class Web(Closing):
    """Connections to one server."""

    def __init__(
        self, url: str, manner: Manner, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Prepare; nothing is sent yet. The certificates of SSL_CERT_FILE are trusted, too."""
        self._url, self._timeout_s = url, manner.timeout_s
        self._http = httpx.Client(
            base_url=url, timeout=manner.timeout_s, headers=_headers(manner), transport=transport
        )

    def get(self, path: str) -> httpx.Response:
        """Ask for what lies at a path.

        Raises:
            PipeError: the server cannot be reached, or does not answer.
        """
        return self._said("GET", path, None)

    def post(self, path: str, body: str | bytes) -> httpx.Response:
        """Send JSON to a path. Raises what `get` raises."""
        return self._said("POST", path, body)

    def _said(self, verb: str, path: str, body: str | bytes | None) -> httpx.Response:
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            return self._http.request(verb, path, content=body, headers=headers)
        except httpx.TimeoutException as error:
            raise silent(self._url, self._timeout_s) from error
        except httpx.TransportError as error:
            raise unreachable(self._url, error) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def read(model: type[M], answer: httpx.Response) -> M:
    """Return an answer's JSON, or raise what its status means.

    Raises:
        PipeError: it is an error, or not the JSON that was expected.
    """
    try:
        if answer.is_success:
            return model.model_validate_json(answer.content)
        said = ErrorResponse.model_validate_json(answer.content).error
    except ValidationError as error:
        message = f"{answer.url} answered with status {answer.status_code} and no pipework JSON"
        raise PipeError(message, "is this the URL of `pipe serve`?") from error
    raise refusal(answer.status_code, said, answer.headers.get("Retry-After"))


def _headers(manner: Manner) -> Mapping[str, str]:
    headers = {TIMEOUT: str(max(1, round(manner.timeout_s * 1e3)))}
    if manner.key:
        headers["Authorization"] = f"Bearer {manner.key}"
    if manner.bulk:
        headers[PRIORITY] = BULK
    return headers
