"""Compression of /v2 inference responses for clients that accept it.

Errors and responses of other endpoints are not compressed, because tritonclient does not decompress
them.
"""

import gzip
import zlib
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES = 1024  # smaller bodies fit into one packet without compression
LEVEL = 1
INFER = "/infer"


class CompressionMiddleware:
    """ASGI middleware that compresses responses with the encoding that the client prefers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request and compress the response."""
        encoding = None
        if scope["type"] == "http" and scope["path"].endswith(INFER):
            accepted = dict(scope["headers"]).get(b"accept-encoding", b"")
            encoding = preferred_encoding(accepted.decode("latin-1"))
        if encoding is None:
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _CompressingSender(send, encoding).send)


class _CompressingSender:
    """Delays the response head until the body is known, because its headers depend on it."""

    def __init__(self, send: Send, encoding: str) -> None:
        self._send = send
        self._encoding = encoding
        self._head: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
            self._head = message
            return
        if self._head is not None:
            head, self._head = self._head, None
            if len(message.get("body", b"")) >= MIN_BYTES and not message.get("more_body", False):
                message = {**message, "body": _compressor(self._encoding)(message["body"])}
                headers = MutableHeaders(raw=list(head["headers"]))
                headers["Content-Encoding"] = self._encoding
                headers["Content-Length"] = str(len(message["body"]))
                headers.add_vary_header("Accept-Encoding")
                head = {**head, "headers": headers.raw}
            await self._send(head)
        await self._send(message)


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
