"""Converts errors to responses: `{"error": MESSAGE}` with the status of the error."""

import logging
from http import HTTPStatus

from fastapi import Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from pipework.errors import InputError, PipeError, TooBusyError
from pipework.wire.schemas import PREDICT_PATH

log = logging.getLogger(__name__)
# Not logged here: they can occur with every request, under overload or from a hostile client.
# Metrics count them, and the causes of overload are logged elsewhere.
EXPECTED = frozenset(
    {HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)


class UnknownPathError(InputError):
    """The path is not one of an endpoint."""

    http_status = HTTPStatus.NOT_FOUND

    def __init__(self, message: str) -> None:
        super().__init__(message, f"send texts to POST {PREDICT_PATH}, or see all paths in /docs")


class WrongMethodError(InputError):
    """The endpoint has other methods."""

    http_status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"expected method {allowed}, found {method}", "see the examples in /docs")
        self.headers = {"Allow": allowed}


async def handle_error(request: Request, error: Exception) -> Response:
    """Handle any exception of an endpoint, and an unknown path or method."""
    match error:
        case HTTPException(status_code=HTTPStatus.NOT_FOUND):
            error = UnknownPathError(f"unknown path {request.url.path[:50]!r}")
        case HTTPException(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers=headers):
            error = WrongMethodError(request.method, (headers or {}).get("Allow", "GET"))
        case _:
            pass
    return error_response(error)


def error_response(error: Exception) -> Response:
    """Return the response for an error. Details of an unexpected error are only logged."""
    status, text, headers = _parts(error)
    fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status not in EXPECTED
    if fault and isinstance(error, PipeError):
        log.error("%s %s", status, text)
    # Not starlette's JSONResponse: json.dumps takes most of the time of a rejected request.
    return Response(to_json({"error": text}), status, headers, "application/json")


def _parts(error: Exception) -> tuple[int, str, dict[str, str]]:
    """Return the status, message and headers for an error."""
    match error:
        case PipeError():
            headers = dict(getattr(error, "headers", {}))
            if isinstance(error, TooBusyError):
                headers["Retry-After"] = str(error.retry_after_s)
            return error.http_status, error.with_hint, headers
        case HTTPException():
            return error.status_code, str(error.detail), dict(error.headers or {})
        case _:  # a bug: uvicorn logs the traceback; the client must not see it
            return 500, "internal error; see the traceback in the server log", {}
