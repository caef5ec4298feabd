"""Server URL, client options and the HTTP connection."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from pipework.client.transport import closed, error_for_status, one_line, timed_out, unreachable
from pipework.closeable import Closeable
from pipework.errors import ConfigError, PipeError, without_password
from pipework.wire.headers import BULK, MAX_TIMEOUT_MS, PRIORITY, TIMEOUT
from pipework.wire.schemas import ErrorResponse

M = TypeVar("M", bound=BaseModel)
MAX_PORT = 65_535
MAX_TIMEOUT_S = MAX_TIMEOUT_MS / 1e3  # of servers
KEY = re.compile(r"[!-~]*")  # printable ASCII without spaces, as in an HTTP header
URL = re.compile(
    r"(?P<scheme>https?|grpcs?)://(?P<host>[^/?#@\s]+)"
    r"(/v2/models/(?P<model>[^/?#\s]+)(/versions/(?P<version>[^/?#\s]+))?)?/?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerUrl:
    """A parsed server URL, with an optional model.

    Attributes:
        model: name of the model; "" if the URL has none.
        version: version of the model; "" for the newest.
    """

    scheme: str
    host: str
    model: str = ""
    version: str = ""

    @classmethod
    def of(cls, url: str) -> "ServerUrl":
        """Parse http://HOST:PORT or grpc://HOST:PORT/v2/models/NAME/versions/VERSION.

        Raises:
            ConfigError: the URL has another format.
        """
        match = URL.fullmatch(url)
        if match is None or not _valid_host(match["host"]) or not url.isprintable():
            expected = "expected http://, https://, grpc:// or grpcs:// and HOST:PORT"
            shown = without_password(url)
            message = f"{shown if shown.isprintable() else ascii(shown)}: {expected}"
            raise ConfigError(message, "to name a model, append /v2/models/NAME")
        return cls(**{name: value or "" for name, value in match.groupdict().items()})

    @property
    def url(self) -> str:
        """The URL without a model."""
        return f"{self.scheme}://{self.host}"

    @property
    def grpc(self) -> bool:
        """Whether the protocol is gRPC."""
        return self.scheme.startswith("grpc")

    @property
    def secure(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme.endswith("s")


def _valid_host(host: str) -> bool:
    try:
        port = httpx.URL(f"http://{host}").port  # checks the name and its encoding
    except httpx.InvalidURL:
        return False
    return port is None or 0 < port <= MAX_PORT


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientOptions:
    """Options of a client.

    Attributes:
        timeout_s: timeout of connections and requests; sent to the server as deadline.
        key: API key, or "".
        bulk: whether requests have low priority.

    Raises:
        ConfigError: the timeout or the key is not valid.
    """

    timeout_s: float
    key: str = ""
    bulk: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            expected = f"expected seconds above 0 and at most {MAX_TIMEOUT_S:.0f}"
            message = f"timeout_s: {expected}, found {self.timeout_s}"
            raise ConfigError(message)
        check_key(self.key)


def check_key(key: str) -> None:
    """Check that an API key can be sent in a header; "" is no key.

    Raises:
        ConfigError: it cannot. The message does not contain the key.
    """
    if not KEY.fullmatch(key):
        message = "API key: expected printable ASCII characters without spaces and line ends"
        raise ConfigError(message, "check the end of the key: PIPEWORK_API_KEY, or key=")


class HttpConnection(Closeable):
    """HTTP connections to one server."""

    def __init__(
        self, url: str, options: ClientOptions, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Create a client; no request is sent yet. Certificates of SSL_CERT_FILE are trusted.

        Raises:
            ConfigError: an environment variable, such as SSL_CERT_FILE or HTTP_PROXY, is not valid.
        """
        self._url, self._timeout_s = url, options.timeout_s
        self._answered = False
        headers = request_headers(options)
        try:
            self._http = httpx.Client(
                base_url=url, timeout=options.timeout_s, headers=headers, transport=transport
            )
        except (OSError, ValueError, httpx.InvalidURL) as error:
            message = f"{url} cannot be used: {error}"
            hint = "check SSL_CERT_FILE, SSL_CERT_DIR, HTTP_PROXY, HTTPS_PROXY and ALL_PROXY"
            raise ConfigError(one_line(message), hint) from error

    def get(self, path: str) -> httpx.Response:
        """Send a GET request.

        Raises:
            PipeError: the server cannot be reached, or does not respond in time.
            NotReadyError: it cannot be reached any more.
        """
        return self._request("GET", path, None)

    def post(self, path: str, body: str | bytes) -> httpx.Response:
        """Send a POST request with JSON. Raises the same errors as `get`."""
        return self._request("POST", path, body)

    def _request(self, verb: str, path: str, body: str | bytes | None) -> httpx.Response:
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            response = self._http.request(verb, path, content=body, headers=headers)
        except httpx.TimeoutException as error:
            raise timed_out(self._url, self._timeout_s) from error
        except RuntimeError as error:  # of a client that was closed meanwhile
            raise closed() from error
        except httpx.RequestError as error:  # also a body that is not valid in its encoding
            raise unreachable(self._url, error, answered=self._answered) from error
        self._answered = True
        return response

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def read(model: type[M], response: httpx.Response) -> M:
    """Return the parsed JSON of a response, or raise the error for its status.

    Raises:
        PipeError: the status is an error, or the JSON is invalid.
    """
    try:
        if response.is_success:
            return model.model_validate_json(response.content)
        message = ErrorResponse.model_validate_json(response.content).error
    except ValidationError as error:
        expected = f"expected JSON of pipework from {response.url}"
        message = f"{expected}, found other content with status {response.status_code}"
        raise PipeError(message, "check that this is the URL of `pipe serve`") from error
    raise error_for_status(response.status_code, message, response.headers.get("Retry-After"))


def request_headers(options: ClientOptions) -> Mapping[str, str]:
    """Return the headers of requests."""
    headers = {TIMEOUT: str(max(1, round(options.timeout_s * 1e3)))}
    if options.key:
        headers["Authorization"] = f"Bearer {options.key}"
    if options.bulk:
        headers[PRIORITY] = BULK
    return headers
