"""Bodies of requests as they come: bounded, and decompressed under the same bound."""

import zlib
from collections.abc import Mapping
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.errors import InputError, TooLargeError

# https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1: deflate is what zlib writes.
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_PLAIN = {"", "identity"}


class CompressionError(InputError):
    """A body is not compressed as its head says."""

    http_status = 400


class EncodingError(InputError):
    """A body is compressed in a way that is not read here."""

    http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    headers: Mapping[str, str] = {"Accept-Encoding": "gzip, deflate"}


class ReadBodies:
    """ASGI middleware: the app receives plain bodies, of so many bytes and no more."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        """Wrap an app."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; reading what is not allowed raises.

        Raises:
            TooLargeError: the body is too large, as it comes or decompressed.
            CompressionError, EncodingError: it cannot be decompressed.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(dict(scope["headers"]), self._max_bytes)

        async def read() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                part, last = message.get("body", b""), not message.get("more_body", False)
                message = {**message, "body": body.read(part, last=last)}
            return message

        await self._app(scope, read, send)


class _Body:
    """One body: what was read of it."""

    def __init__(self, headers: Mapping[bytes, bytes], max_bytes: int) -> None:
        declared = headers.get(b"content-length", b"")
        self._declared = int(declared) if declared.isdigit() else 0
        self._encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        self._max_bytes = max_bytes
        self._came = 0
        self._given = 0
        self._unpacking = (
            zlib.decompressobj(_WINDOWS[self._encoding]) if self._encoding in _WINDOWS else None
        )

    def read(self, part: bytes, *, last: bool) -> bytes:
        """Return a part in plain."""
        self._came += len(part)
        self._check(max(self._came, self._declared))
        if self._unpacking is None:
            if self._encoding not in _PLAIN:
                message = (
                    f"Content-Encoding: expected gzip or deflate, found {self._encoding[:20]!r}"
                )
                raise EncodingError(message)
            return part
        return self._unpacked(self._unpacking, part, last=last)

    def _unpacked(self, unpacking: "zlib._Decompress", part: bytes, *, last: bool) -> bytes:
        try:
            # One byte more than is allowed tells a bomb, and no more of it is ever made.
            plain = unpacking.decompress(part, self._max_bytes - self._given + 1)
        except zlib.error as error:
            message = f"body: expected {self._encoding}, found something else"
            raise CompressionError(message) from error
        self._given += len(plain)
        self._check(self._given)
        if unpacking.unused_data or (last and not unpacking.eof):
            found = "more behind its end" if unpacking.eof else "no end"
            message = f"body: expected {self._encoding}, found {found}"
            raise CompressionError(message)
        return plain

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            text = f"body: expected at most {self._max_bytes} bytes, found more"
            raise TooLargeError(text)
