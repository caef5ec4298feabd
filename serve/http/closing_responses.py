"""Answers after which a connection is closed."""

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.errors import NotReadyError
from pipework.serve.http.auth import HEALTH
from pipework.serve.http.errors import failure

HEAD_BYTES = 64 * 2**10
LONG_HEAD = f"expected a head of at most {HEAD_BYTES} bytes, found more"
CLOSED = (b"connection", b"close")


class HeadTooLongError(NotReadyError):
    """The head of a request is too long."""

    http_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


async def too_long_a_head(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI app of a request whose head is too long."""
    await failure(HeadTooLongError(LONG_HEAD))(scope, receive, _closing(send))


class TooMany:
    """ASGI app of a connection too many: says so, save to those who ask for the health."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        """Wrap the app that tells of the health."""
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and close."""
        if scope["path"] in HEALTH:
            await self._app(scope, receive, _closing(send))
            return
        error = NotReadyError(f"{self._most} connections are open, which is the limit", "try again")
        await failure(error)(scope, receive, _closing(send))


def _closing(send: Send) -> Send:
    async def close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], CLOSED]}
        await send(message)

    return close
