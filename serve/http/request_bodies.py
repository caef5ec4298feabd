"""Request bodies: size limits and decompression. Compression of /v2 inference responses.

Errors and responses of other endpoints are not compressed, because tritonclient does not decompress
them.
"""

import asyncio
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Self

from starlette.responses import Response

from pipework.errors import InputError, TooBusyError, TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.scheduling.loop_bridge import LARGE_BYTES, LARGE_WORK
from pipework.wire.schemas import SPLIT_HINT

# "deflate" is the zlib format: https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_UNCOMPRESSED = {"", "identity"}
_MULTI_MEMBER = {"gzip", "x-gzip"}
MAX_MEMBERS = 1024  # of a gzip body: a member may be empty, but takes time
_PART_BYTES = 16 * 2**10
_COMPRESSION_HINT = "compress the body again, or send it without Content-Encoding"
COPIES = 2  # of a body in memory: the body and its texts, or its texts as UTF-8 bytes and decoded
MIN_BYTES = 1024  # smaller bodies fit into one packet without compression
LEVEL = 1


class CompressionError(InputError):
    """The body is not valid data of its Content-Encoding."""

    http_status = 400


class EncodingError(InputError):
    """The Content-Encoding is not supported."""

    http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    headers: Mapping[str, str] = {"Accept-Encoding": "gzip, deflate"}


class RequestTimeoutError(InputError):
    """A request was not received in time."""

    http_status = HTTPStatus.REQUEST_TIMEOUT

    def __init__(self, part: str, limit_s: float) -> None:
        message = f"the {part} of the request was not received within {limit_s:g} s"
        super().__init__(message, "send the whole request at once")


class ByteBudget:
    """Limits the bytes that all requests hold together.

    A quarter is for small requests, so that a few large ones do not cause the refusal of all.
    """

    def __init__(self, most: int, purpose: str) -> None:
        """Allow at most `most` bytes; `purpose` is what requests do while they hold them."""
        self._most = most
        self._purpose = purpose
        self.used = 0

    def change(self, old: int, new: int) -> None:
        """Change the bytes that a request holds. A single request may hold any number.

        Raises:
            TooBusyError: it would hold more than before, and there are too few.
        """
        most = self._most if new <= LARGE_BYTES else self._most * 3 // 4
        if new > old and self.used > old and self.used - old + new > most:
            message = f"the server holds {self.used} bytes of requests that {self._purpose}"
            raise TooBusyError(message)
        self.used += new - old


class HeldBytes:
    """The bytes of a budget that a request holds, until the end of a `with` block or `resize`."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._size = 0

    def resize(self, size: int) -> None:
        """Hold this number of bytes; 0 to release all. Raises the error of the budget."""
        self._budget.change(self._size, size)
        self._size = size

    def __enter__(self) -> Self:
        """Hold nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release all bytes."""
        self.resize(0)


class RequestMemory:
    """The memory of requests.

    Attributes:
        body_bytes: size limit of a body, compressed and decompressed.
        received: bytes of bodies that are incomplete, or complete and still compressed.
        processed: bytes of complete requests, until their responses have been sent.
        unread: bytes of responses that clients do not read.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self.body_bytes = limits.body_bytes
        self.received = ByteBudget(limits.received_bytes, "are being received")
        self.processed = ByteBudget(limits.processed_bytes, "are being processed")
        self.unread = ByteBudget(limits.processed_bytes, "have an unread response")


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
    return TooLargeError(f"body: expected at most {max_bytes} bytes, found more", SPLIT_HINT)


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
                raise CompressionError(message, _COMPRESSION_HINT) from error
            left -= len(parts[-1])
            if left < 0:
                raise too_large_error(max_bytes)
            data = decompressor.unused_data
    if not decompressor.eof:
        raise _incomplete(encoding, "no end")
    return b"".join(parts)


def _incomplete(encoding: str, found: str) -> CompressionError:
    message = f"body: expected complete {encoding} data, found {found}"
    return CompressionError(message, _COMPRESSION_HINT)


async def compress(response: Response, fields: Mapping[bytes, bytes]) -> Response:
    """Compress the body of a response with the encoding that the client prefers."""
    accepted = fields.get(b"accept-encoding")
    if accepted is None or len(response.body) < MIN_BYTES:
        return response
    encoding = preferred_encoding(accepted.decode("latin-1"))
    if encoding is not None:
        pack = partial(zlib.compress, bytes(response.body), LEVEL, _WINDOWS[encoding])
        large = len(response.body) > LARGE_BYTES
        response.body = await asyncio.to_thread(pack) if large else pack()
        response.headers["Content-Encoding"] = encoding
        response.headers["Content-Length"] = str(len(response.body))
        response.headers.add_vary_header("Accept-Encoding")
    return response


def preferred_encoding(accepted: str) -> str | None:
    """Return the preferred encoding of an Accept-Encoding header: gzip, deflate or None."""
    qualities = {"gzip": 0.0, "deflate": 0.0}
    for part in accepted.split(","):
        name, _, parameters = part.partition(";")
        key = name.strip().lower()
        if key in qualities:
            qualities[key] = _quality(parameters)
    best = max(qualities, key=lambda name: qualities[name])
    return best if qualities[best] > 0 else None


def _quality(parameters: str) -> float:
    key, _, value = parameters.partition("=")
    if key.strip().lower() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
