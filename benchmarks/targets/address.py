"""Where a server is, and what it wants to know of who asks."""

import os
import ssl
from base64 import b64encode
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import unquote, urlsplit, urlunsplit

from pipework.errors import ConfigError
from pipework.serve.client.client import VARIABLE

SECURE = ("https", "grpcs")
PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A URL in parts.

    Attributes:
        scheme: http, https, grpc or grpcs.
        host: a name or an address.
        port: of it.
        path: "" or what follows, from its first slash, with its query.
        credentials: the value of the header Authorization, or "".
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    credentials: str = ""

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL; its user and password, or PIPEWORK_API_KEY, become the credentials.

        Raises:
            ConfigError: it is none.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme)
        except ValueError:
            parts, port = urlsplit(""), None
        if port is None or not parts.hostname:
            message = f"{url} is not a URL of http, https, grpc or grpcs"
            raise ConfigError(message, "for example http://127.0.0.1:8000")
        key = os.environ.get(VARIABLE)
        credentials = f"Bearer {key}" if key else ""
        if parts.username is not None:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = f"Basic {b64encode(named.encode()).decode()}"
        path = urlunsplit(("", "", parts.path, parts.query, "")).rstrip("/")
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            path=path,
            credentials=credentials,
        )

    @property
    def at(self) -> str:
        """HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return f"{self.scheme}://{self.at}{self.path}"

    @property
    def secure(self) -> bool:
        """Whether it is asked by TLS."""
        return self.scheme in SECURE

    def beside(self, port: int) -> "Address":
        """Return a port of this machine in its place, without TLS."""
        return replace(self, scheme=self.scheme.removesuffix("s"), host="127.0.0.1", port=port)

    def tls(self) -> ssl.SSLContext | None:
        """Return what checks the server's certificate (SSL_CERT_FILE names authorities), or None.

        Raises:
            ConfigError: the certificates of SSL_CERT_FILE cannot be read.
        """
        return ssl.create_default_context() if self.secure else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Addressed:
    """What every Target is, whatever it wants to hear: somewhere."""

    address: Address

    @property
    def shown(self) -> str:
        """The URL without a password."""
        return self.address.shown

    @property
    def host(self) -> str:
        """Of the URL."""
        return self.address.host

    @property
    def port(self) -> int:
        """Of the URL."""
        return self.address.port

    def beside(self, port: int) -> Self:
        """Return a target of the same requests that listens here, without TLS."""
        return replace(self, address=self.address.beside(port))
