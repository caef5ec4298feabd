"""Error responses that close the connection."""

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.errors import NotReadyError
from pipework.serve.http.auth import HEALTH
from pipework.serve.http.errors import error_response

HEAD_BYTES = 64 * 2**10
HEAD_TOO_LONG = f"expected a request head of at most {HEAD_BYTES} bytes, found more"
CLOSE_HEADER = (b"connection", b"close")


class HeadTooLongError(NotReadyError):
    """The request head is too long."""

    http_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


async def head_too_long_app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI app that answers a request whose head is too long."""
    await error_response(HeadTooLongError(HEAD_TOO_LONG))(scope, receive, _closing(send))


class ConnectionLimitApp:
    """ASGI app for connections above the limit: answers health checks and rejects the rest."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and close the connection."""
        if scope["path"] in HEALTH:
            await self._app(scope, receive, _closing(send))
            return
        message = f"all {self._limit} allowed connections are in use"
        error = NotReadyError(message, "try again later")
        await error_response(error)(scope, receive, _closing(send))


def _closing(send: Send) -> Send:
    async def close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], CLOSE_HEADER]}
        await send(message)

    return close
