"""The one place where errors become answers: `{"error": one line}` with the status of the error."""

import logging
from http import HTTPStatus

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pipework.errors import PipeError, TooBusyError
from pipework.serve.request.context import REQUEST_ID, current

log = logging.getLogger(__name__)
# They say how the server or the client fares, and may come with each request: what lies behind them
# is logged where it happens, and they are counted.
EXPECTED = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


async def answer_error(_: Request, error: Exception) -> Response:
    """Answer a request that any error ended."""
    return failure(error)


def failure(error: Exception) -> Response:
    """Turn an error into an answer; what is a bug is told to nobody but the log."""
    status, text, headers = worded(error)
    if observed := current():  # a bug is answered outside of all that adds headers
        headers[REQUEST_ID] = observed.id
    fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status not in EXPECTED
    if fault and isinstance(error, PipeError):
        log.error("%s %s", status, text)
    return JSONResponse({"error": text}, status, headers)


def worded(error: Exception) -> tuple[int, str, dict[str, str]]:
    """Return the status of an error, its line, and the headers that belong to it."""
    match error:
        case PipeError():
            text = f"{error}; {error.hint}" if error.hint else str(error)
            headers = dict(getattr(error, "headers", {}))
            if isinstance(error, TooBusyError):
                headers["Retry-After"] = str(error.retry_after_s)
            return error.http_status, text, headers
        case HTTPException():
            return error.status_code, str(error.detail), dict(error.headers or {})
        case _:  # a bug: uvicorn logs the traceback, and the client learns no more than this
            return 500, "internal error; the server's log has the traceback", {}
