"""Size limit and decompression of request bodies."""

import zlib
from collections.abc import Mapping
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.errors import InputError, TooLargeError

# "deflate" is the zlib format: https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_UNCOMPRESSED = {"", "identity"}


class CompressionError(InputError):
    """The body is not valid data of its Content-Encoding."""

    http_status = 400


class EncodingError(InputError):
    """The Content-Encoding is not supported."""

    http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    headers: Mapping[str, str] = {"Accept-Encoding": "gzip, deflate"}


class BodyMiddleware:
    """ASGI middleware that decompresses request bodies and limits their size."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request. Errors are raised when the app reads the body.

        Raises:
            TooLargeError: the body exceeds the limit, compressed or decompressed.
            CompressionError, EncodingError: the body cannot be decompressed.
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
    """The body of one request."""

    def __init__(self, headers: Mapping[bytes, bytes], max_bytes: int) -> None:
        declared = headers.get(b"content-length", b"")
        self._declared = int(declared) if declared.isdigit() else 0
        self._encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        self._max_bytes = max_bytes
        self._received = 0
        self._decompressed = 0
        self._decompressor = (
            zlib.decompressobj(_WINDOWS[self._encoding]) if self._encoding in _WINDOWS else None
        )

    def read(self, part: bytes, *, last: bool) -> bytes:
        """Return the decompressed content of a part."""
        self._received += len(part)
        self._check(max(self._received, self._declared))
        if self._decompressor is None:
            if self._encoding not in _UNCOMPRESSED:
                message = (
                    f"Content-Encoding: expected gzip or deflate, found {self._encoding[:20]!r}"
                )
                raise EncodingError(message)
            return part
        return self._decompress(self._decompressor, part, last=last)

    def _decompress(self, decompressor: "zlib._Decompress", part: bytes, *, last: bool) -> bytes:
        try:
            # Decompress at most one byte above the limit: enough to detect a decompression bomb.
            plain = decompressor.decompress(part, self._max_bytes - self._decompressed + 1)
        except zlib.error as error:
            message = f"body: expected {self._encoding} data, found something else"
            raise CompressionError(message) from error
        self._decompressed += len(plain)
        self._check(self._decompressed)
        if decompressor.unused_data or (last and not decompressor.eof):
            found = "data after its end" if decompressor.eof else "no end"
            message = f"body: expected complete {self._encoding} data, found {found}"
            raise CompressionError(message)
        return plain

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            text = f"body: expected at most {self._max_bytes} bytes, found more"
            raise TooLargeError(text)
