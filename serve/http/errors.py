"""Converts errors to responses: `{"error": MESSAGE}` with the status of the error."""

import logging
from http import HTTPStatus

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework.errors import NotReadyError, PipeError, TooBusyError
from pipework.serve.http.auth import HEALTH
from pipework.serve.request.context import REQUEST_ID, current_request

log = logging.getLogger(__name__)
# Not logged here: they can occur with every request under overload. Metrics count them, and their
# causes are logged elsewhere.
EXPECTED = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


async def handle_error(_: Request, error: Exception) -> Response:
    """Handle any exception of an endpoint."""
    return error_response(error)


def error_response(error: Exception) -> Response:
    """Return the response for an error. Details of an unexpected error are only logged."""
    status, text, headers = error_parts(error)
    if context := current_request():  # no middleware adds the header if this is a bug
        headers[REQUEST_ID] = context.id
    fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status not in EXPECTED
    if fault and isinstance(error, PipeError):
        log.error("%s %s", status, text)
    return JSONResponse({"error": text}, status, headers)


def error_parts(error: Exception) -> tuple[int, str, dict[str, str]]:
    """Return the status, message and headers for an error."""
    match error:
        case PipeError():
            text = f"{error}; {error.hint}" if error.hint else str(error)
            headers = dict(getattr(error, "headers", {}))
            if isinstance(error, TooBusyError):
                headers["Retry-After"] = str(error.retry_after_s)
            return error.http_status, text, headers
        case HTTPException():
            return error.status_code, str(error.detail), dict(error.headers or {})
        case _:  # a bug: uvicorn logs the traceback; the client must not see it
            return 500, "internal error; see the traceback in the server log", {}


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
