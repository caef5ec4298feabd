"""Answers of /v2 infer go compressed where a client asks for that.

Only those, and only where they are answers and no errors: tritonclient decompresses nothing else.
"""

import gzip
import zlib
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SMALLEST = 1024  # bytes; less goes in one packet anyway
FASTEST = 1
INFER = "/infer"


class CompressAnswers:
    """ASGI middleware: compresses answers with gzip or deflate, whichever the client prefers."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and its answer compressed."""
        encoding = None
        if scope["type"] == "http" and scope["path"].endswith(INFER):
            accepted = dict(scope["headers"]).get(b"accept-encoding", b"")
            encoding = preferred(accepted.decode("latin-1"))
        if encoding is None:
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Sender(send, encoding).send)


class _Sender:
    """Holds the head of an answer back until its body has come."""

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
            if len(message.get("body", b"")) >= SMALLEST and not message.get("more_body", False):
                message = {**message, "body": _pack(self._encoding)(message["body"])}
                headers = MutableHeaders(raw=list(head["headers"]))
                headers["Content-Encoding"] = self._encoding
                headers["Content-Length"] = str(len(message["body"]))
                headers.add_vary_header("Accept-Encoding")
                head = {**head, "headers": headers.raw}
            await self._send(head)
        await self._send(message)


def preferred(accepted: str) -> str | None:
    """Return which of gzip and deflate an Accept-Encoding header likes best, None for neither."""
    found = {"gzip": 0.0, "deflate": 0.0}
    for one in accepted.split(","):
        name, _, rest = one.partition(";")
        key = name.strip().lower()
        if key in found:
            found[key] = _quality(rest)
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 0 else None


def _quality(parameters: str) -> float:
    key, _, value = parameters.partition("=")
    if key.strip().lower() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _pack(encoding: str) -> Callable[[bytes], bytes]:
    if encoding == "gzip":
        return lambda body: gzip.compress(body, FASTEST, mtime=0)
    return lambda body: zlib.compress(body, FASTEST)
