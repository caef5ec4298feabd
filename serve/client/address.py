"""Where a client finds its server, and how it asks."""

import re
from dataclasses import dataclass

from pipework.errors import ConfigError

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
