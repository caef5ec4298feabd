"""API keys: who may ask.

A key is kept only as a digest with a secret of this process, so that neither a log nor an error
nor a dump of an object can show it. Every key is compared with every one that is given, each time
and in constant time: how long that takes says nothing of a key, nor of its place.
"""

import hashlib
import hmac
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from pipework.errors import ConfigError, PipeError
from pipework.serve.http.errors import failure

log = logging.getLogger(__name__)
VARIABLE = "PIPEWORK_API_KEYS"
BEARER, KEY_HEADER = "authorization", "x-api-key"
_KEY = re.compile(r"[!-~]+")  # what a header can carry
_HINT = "send Authorization: Bearer KEY, or X-API-Key: KEY"


class KeyNeededError(PipeError):
    """A request came without a key that is known."""

    http_status = 401
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class ApiKeys:
    """The keys of a server; with none anybody may ask."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Keep the digests of keys."""
        self._secret = os.urandom(32)
        self._digests = {self._digest(key) for key in keys}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._digests)

    def check(self, headers: Iterable[tuple[str, str]]) -> None:
        """Check that a request may be answered; its headers by their names in lower case.

        Raises:
            KeyNeededError: it carries no key that is known; the error does not repeat it.
        """
        if not self._digests:
            return
        given = list(_given(headers))
        known = [self._knows(key) for key in given]  # all of them, so that the time is the same
        if not any(known):
            found = "one that is not known" if given else "none"
            message = f"expected an API key, found {found}"
            raise KeyNeededError(message, _HINT)

    def _knows(self, key: str) -> bool:
        digest = self._digest(key)
        same = [hmac.compare_digest(digest, one) for one in self._digests]
        return any(same)

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(
            key.encode(errors="surrogatepass"), key=self._secret, digest_size=32
        ).digest()


def read_keys(path: Path | None, environment: Mapping[str, str]) -> ApiKeys:
    """Read the keys of a file, one a line beside blank lines and # comments, and of the variable.

    Raises:
        ConfigError: the file cannot be read; the file, or the variable that is set, holds no key;
            or one is not printable ASCII without spaces, naming its line and not the key.
    """
    keys = [] if path is None else _of_file(path)
    given = environment.get(VARIABLE)
    if given is not None:
        keys += _checked([(VARIABLE, key.strip()) for key in given.split(",")], VARIABLE)
    return ApiKeys(keys)


def _of_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        message = f"security.keys_file: {path} cannot be read: {reason}"
        raise ConfigError(message) from None  # the cause might show a part of the file
    if mode & stat.S_IROTH:
        log.warning("%s holds API keys and is readable by all users: chmod o-r %s", path, path)
    numbered = [(f"{path}:{number}", line.strip()) for number, line in enumerate(lines, 1)]
    return _checked([one for one in numbered if not one[1].startswith("#")], str(path))


def _checked(found: list[tuple[str, str]], where: str) -> list[str]:
    for place, key in found:
        if key and not _KEY.fullmatch(key):
            message = f"{place}: expected an API key of printable ASCII without spaces"
            raise ConfigError(message)
    keys = [key for _, key in found if key]
    if not keys:
        message = f"{where}: expected at least one API key, found none"
        raise ConfigError(message, "to let anybody ask, leave the setting out")
    return keys


def _given(headers: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, value in headers:
        if name == KEY_HEADER:
            yield value.strip()
        elif name == BEARER:
            scheme, _, key = value.strip().partition(" ")
            if scheme.lower() == "bearer":
                yield key.strip()


HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
# What holds no data: the pages. What they show is asked for with a key.
PAGES = frozenset({"/", "/docs", "/openapi.json", "/favicon.ico"})
FOLDERS = ("/docs/static/", "/page/")


class KeyGuard:
    """ASGI middleware: a request needs a key, save for health and pages."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        """Wrap an app."""
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if self._keys and scope["type"] == "http" and not is_open(scope["path"]):
            headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in scope["headers"]
            ]
            try:
                self._keys.check(headers)
            except KeyNeededError as error:
                await failure(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Return whether anybody may ask for a path."""
    return path in HEALTH or path in PAGES or path.startswith(FOLDERS)
