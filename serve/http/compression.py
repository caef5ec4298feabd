"""Compression of /v2 inference responses for clients that accept it.

Errors and responses of other endpoints are not compressed, because tritonclient does not decompress
them.
"""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Mapping

from starlette.responses import Response

MIN_BYTES = 1024  # smaller bodies fit into one packet without compression
LARGE_BYTES = 64 * 2**10  # larger bodies are compressed in a thread
LEVEL = 1


async def compress(response: Response, fields: Mapping[bytes, bytes]) -> Response:
    """Compress the body of a response with the encoding that the client prefers.

    Args:
        response: the response to an inference request.
        fields: the headers of the request, with names in lower case.
    """
    accepted = fields.get(b"accept-encoding")
    if accepted is None or len(response.body) < MIN_BYTES:
        return response
    encoding = preferred_encoding(accepted.decode("latin-1"))
    if encoding is not None:
        body, compressor = bytes(response.body), _compressor(encoding)
        large = len(body) > LARGE_BYTES
        response.body = await asyncio.to_thread(compressor, body) if large else compressor(body)
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


def _compressor(encoding: str) -> Callable[[bytes], bytes]:
    if encoding == "gzip":
        return lambda body: gzip.compress(body, LEVEL, mtime=0)
    return lambda body: zlib.compress(body, LEVEL)
