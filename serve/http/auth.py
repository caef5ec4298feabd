"""Authentication with API keys.

Keys are stored only as digests with a random secret of this process, so that no log, error or dump
contains them. The digest of a sent key cannot be predicted without the secret, so the duration of a
look-up reveals nothing about the keys.
"""

import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from pipework.errors import ConfigError, PipeError

log = logging.getLogger(__name__)
VARIABLE = "PIPEWORK_API_KEYS"
BEARER, KEY_HEADER = "authorization", "x-api-key"
MAX_KEYS = 4  # of a request: clients send one, and proxies may add another
_KEY = re.compile(r"[!-~]+")  # printable ASCII without spaces, as in an HTTP header
_HINT = "send Authorization: Bearer KEY, or X-API-Key: KEY"
HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
# Pages contain no data. Their scripts request the data with a key.
PAGES = frozenset({"/", "/docs", "/openapi.json", "/favicon.ico"})
FOLDERS = ("/docs/static/", "/page/")


class UnauthorizedError(PipeError):
    """The request has no valid API key."""

    http_status = 401
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class ForeignPageError(PipeError):
    """A web page of another site has sent the request."""

    http_status = 403


class ForeignHostError(PipeError):
    """The Host of the request is not a name of this server."""

    http_status = 403


class HostNames:
    """The names that the Host header of a request may have; addresses and localhost always.

    A web page whose name resolves to the address of this server (DNS rebinding) could read its
    responses otherwise. It cannot have an address as its name.
    """

    def __init__(self, names: Iterable[str] | None = None) -> None:
        """Allow names; by default all."""
        self._names = None if names is None else {name.lower() for name in names}

    def fault(self, host: bytes) -> ForeignHostError | None:
        """Return the error for a Host header that is not allowed."""
        if self._names is None or not host:
            return None
        name = host.decode("latin-1").lower()
        if _is_address(name) or re.sub(r":\d*$", "", name) in self._names:
            return None
        message = f"expected a Host name of this server, found {name[:50]!r}"
        return ForeignHostError(message, "allow it with --set 'security.hosts=[\"NAME\"]'")


class ApiKeys:
    """The API keys of a server. Without keys every request is allowed."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._secret = os.urandom(32)
        self._digests = {self._digest(key) for key in keys}

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._digests)

    def check(self, headers: Iterable[tuple[str, str]]) -> str:
        """Return the digest of the valid key in the headers; "" if none is needed.

        Header names are in lower case.

        Raises:
            UnauthorizedError: there is no valid key. The message does not contain the key sent.
        """
        if not self._digests:
            return ""
        keys = list(islice(_sent_keys(headers), MAX_KEYS + 1))
        many = len(keys) > MAX_KEYS
        valid = [digest for digest in map(self._digest, keys) if digest in self._digests]
        if many or not valid:
            found = f"more than {MAX_KEYS}" if many else "an unknown key" if keys else "none"
            message = f"expected an API key, found {found}"
            raise UnauthorizedError(message, _HINT)
        return valid[0].hex()

    def _digest(self, key: str) -> bytes:
        data = key.encode(errors="surrogatepass")
        return hashlib.blake2b(data, key=self._secret, digest_size=32).digest()


def read_keys(path: Path | None, environment: Mapping[str, str]) -> ApiKeys:
    """Read the keys of a file and of the environment variable PIPEWORK_API_KEYS.

    The file has one key per line; blank lines and lines that start with # are ignored. Keys in the
    variable are separated by commas.

    Raises:
        ConfigError: the file cannot be read; the file or the variable is set but contains no key;
            a key is not printable ASCII without spaces (the message has the line, not the key).
    """
    keys = [] if path is None else _read_file(path)
    value = environment.get(VARIABLE)
    if value is not None:
        keys += _checked([(VARIABLE, key.strip()) for key in value.split(",")], VARIABLE)
    return ApiKeys(keys)


def _read_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"security.keys_file: {path} cannot be read: {reason}"
        raise ConfigError(message) from None  # the cause could show a part of the file
    if mode & stat.S_IROTH:
        log.warning(
            "%s contains API keys and is readable by all users: run chmod o-r %s", path, path
        )
    keys = [(f"{path}:{number}", line.strip()) for number, line in enumerate(lines, 1)]
    return _checked([(place, key) for place, key in keys if not key.startswith("#")], str(path))


def _checked(entries: list[tuple[str, str]], source: str) -> list[str]:
    for place, key in entries:
        if key and not _KEY.fullmatch(key):
            message = f"{place}: expected an API key of printable ASCII characters without spaces"
            raise ConfigError(message)
    keys = [key for _, key in entries if key]
    if not keys:
        message = f"{source}: expected at least one API key, found none"
        raise ConfigError(
            message, "add a key, or remove the setting to allow requests without a key"
        )
    return keys


def _sent_keys(headers: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, value in headers:
        if name == KEY_HEADER:
            yield value.strip()
        elif name == BEARER:
            scheme, _, key = value.strip().partition(" ")
            if scheme.lower() == "bearer":
                yield key.strip()


def check_origin(headers: Headers) -> None:
    """Check that a POST request was not sent by a web page of another site.

    A browser sends the origin of the page, other clients send none. A page of this server has the
    Host of its requests as origin. So has a page whose name resolves to the address of this server
    (DNS rebinding), unless Host is an address.

    Raises:
        ForeignPageError: the origin is another site, or a name that anybody could own.
    """
    host = headers.get("host", "").lower()
    own = {f"http://{host}", f"https://{host}"} if _is_address(host) else set()
    foreign = [origin for origin in headers.getlist("origin") if origin.lower() not in own]
    if foreign:
        message = f"expected no request of a web page, found Origin {foreign[0][:50]!r}"
        raise ForeignPageError(message, "require API keys: --set security.keys_file=FILE")


def _is_address(host: str) -> bool:
    """Return whether a Host header is an address or localhost, and not another name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def is_public(path: str) -> bool:
    """Return whether a path needs no API key."""
    return path in HEALTH or path in PAGES or path.startswith(FOLDERS)
