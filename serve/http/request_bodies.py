"""Size limit and decompression of request bodies."""

import asyncio
import zlib
from collections.abc import Mapping
from http import HTTPStatus

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


def check_body(fields: Mapping[bytes, bytes], max_bytes: int) -> None:
    """Check the declared size and the encoding of a body from the headers of its request.

    Raises:
        TooLargeError: the declared size exceeds the limit.
        EncodingError: the encoding is not supported.
    """
    declared = fields.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large_error(max_bytes)
    encoding = _encoding(fields)
    if encoding not in _UNCOMPRESSED and encoding not in _WINDOWS:
        message = f"Content-Encoding: expected gzip or deflate, found {encoding[:20]!r}"
        raise EncodingError(message)


def too_large_error(max_bytes: int) -> TooLargeError:
    """Return the error for a body that exceeds the limit, compressed or decompressed."""
    return TooLargeError(f"body: expected at most {max_bytes} bytes, found more")


async def decompress(body: bytes, fields: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """Return the decompressed body of a request; its encoding has been checked.

    Raises:
        TooLargeError: the decompressed body exceeds the limit.
        CompressionError: the body is not valid data of its encoding.
    """
    encoding = _encoding(fields)
    if encoding in _UNCOMPRESSED:
        return body
    # In a thread: a small body may have a large content.
    return await asyncio.to_thread(_decompress, body, encoding, max_bytes)


def _encoding(fields: Mapping[bytes, bytes]) -> str:
    return fields.get(b"content-encoding", b"").decode("latin-1").strip().lower()


def _decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(_WINDOWS[encoding])
    try:
        # Decompress at most one byte above the limit: enough to detect a decompression bomb.
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        message = f"body: expected {encoding} data, found something else"
        raise CompressionError(message) from error
    if len(content) > max_bytes:
        raise too_large_error(max_bytes)
    if decompressor.unused_data or not decompressor.eof:
        found = "data after its end" if decompressor.eof else "no end"
        message = f"body: expected complete {encoding} data, found {found}"
        raise CompressionError(message)
    return content
