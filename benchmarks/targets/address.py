"""Address and credentials of a target server."""

import os
import ssl
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from pipework.client.address import check_key
from pipework.client.client import KEY_VARIABLE
from pipework.errors import ConfigError, without_password

DEFAULT_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetAddress:
    """Parts of a target's URL.

    Attributes:
        path: path with its leading slash and query, or "".
        credentials: value of the Authorization header, or "".
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    credentials: str = ""

    @classmethod
    def of(cls, url: str) -> "TargetAddress":
        """Parse a URL; its user and password, or PIPEWORK_API_KEY, become the credentials.

        Raises:
            ConfigError: `url` is not a valid URL of a supported scheme, or the key is not valid.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            parts, port = urlsplit(""), None
        if port is None or not parts.hostname:
            message = f"{without_password(url)} is not a valid http, https, grpc or grpcs URL"
            raise ConfigError(message, "for example http://127.0.0.1:8000")
        key = os.environ.get(KEY_VARIABLE, "")
        check_key(key)
        credentials = f"Bearer {key}" if key else ""
        if parts.username is not None:
            user_password = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credentials = f"Basic {b64encode(user_password.encode()).decode()}"
        path = urlunsplit(("", "", parts.path, parts.query, "")).rstrip("/")
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            path=path,
            credentials=credentials,
        )

    @property
    def host_port(self) -> str:
        """Host and port as HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def display_url(self) -> str:
        """URL without credentials."""
        return f"{self.scheme}://{self.host_port}{self.path}"

    @property
    def uses_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.scheme.endswith("s")

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context that verifies the server, or None without TLS.

        SSL_CERT_FILE names the file of trusted certificates.
        """
        return ssl.create_default_context() if self.uses_tls else None
