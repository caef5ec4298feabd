"""Calls an ASGI app with a complete request."""

import asyncio

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from pipework.serve.http.request_parser import RequestHead

NO_BODY = frozenset({204, 304})  # statuses of responses without a body and its length


async def call_app(app: ASGIApp, head: RequestHead, body: bytes) -> Response:
    """Return the complete response of an ASGI app.

    Raises:
        RuntimeError: the app sent no response.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "scheme": "http",
        # The connection omits the body of the response to HEAD, so that endpoints need only GET.
        "method": "GET" if head.method == "HEAD" else head.method,
        "path": head.path,
        "raw_path": head.path.encode(),
        "root_path": "",
        "query_string": head.query,
        "headers": head.headers,
    }
    unread: list[Message] = [{"type": "http.request", "body": body}]
    sent: list[Message] = []

    async def receive() -> Message:
        # After the body the next message would be the disconnect; it cancels the task instead.
        return unread.pop() if unread else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        message = f"no response to {head.method} {head.path}"
        raise RuntimeError(message)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    response = Response(content, sent[0]["status"])
    length = [] if response.status_code in NO_BODY else [(b"content-length", b"%d" % len(content))]
    headers = [header for header in sent[0]["headers"] if header[0] != b"content-length"]
    response.raw_headers = [*headers, *length]
    return response
