"""Size limit and decompression of request bodies."""

import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from pipework.errors import InputError, TooLargeError
from pipework.serve.scheduling.loop_bridge import LARGE_BYTES, LARGE_WORK

# "deflate" is the zlib format: https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_UNCOMPRESSED = {"", "identity"}
_MULTI_MEMBER = {"gzip", "x-gzip"}
MAX_MEMBERS = 1024  # of a gzip body: a member may be empty, but takes time
_PART_BYTES = 16 * 2**10


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
        TooBusyError: too many large bodies are waiting to be decompressed.
    """
    encoding = _encoding(fields)
    if encoding in _UNCOMPRESSED:
        return body
    if len(body) <= LARGE_BYTES < max_bytes:
        with suppress(TooLargeError):  # a small body may have a large content
            return _decompress(body, encoding, LARGE_BYTES)
    LARGE_WORK.check_room(max_bytes)
    return await LARGE_WORK.run(max_bytes, partial(_decompress, body, encoding, max_bytes))


def _encoding(fields: Mapping[bytes, bytes]) -> str:
    return fields.get(b"content-encoding", b"").decode("latin-1").strip().lower()


def _decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Return the content of all members: https://www.rfc-editor.org/rfc/rfc1952#section-2.2."""
    decompressor = zlib.decompressobj(_WINDOWS[encoding])
    parts: list[bytes] = []
    members, left = 1, max_bytes
    # In parts, because the data after a member are copied.
    for start in range(0, len(body), _PART_BYTES):
        data = body[start : start + _PART_BYTES]
        while data:
            if decompressor.eof:
                members += 1
                if members > (MAX_MEMBERS if encoding in _MULTI_MEMBER else 1):
                    raise _incomplete(encoding, "data after its end")
                decompressor = zlib.decompressobj(_WINDOWS[encoding])
            try:
                # One byte above the limit is enough to detect a decompression bomb.
                parts.append(decompressor.decompress(data, left + 1))
            except zlib.error as error:
                message = f"body: expected {encoding} data, found something else"
                raise CompressionError(message) from error
            left -= len(parts[-1])
            if left < 0:
                raise too_large_error(max_bytes)
            data = decompressor.unused_data
    if not decompressor.eof:
        raise _incomplete(encoding, "no end")
    return b"".join(parts)


def _incomplete(encoding: str, found: str) -> CompressionError:
    return CompressionError(f"body: expected complete {encoding} data, found {found}")
