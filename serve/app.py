"""The doors: routes, limits, metrics, and the one place where errors become answers."""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipework import __version__
from pipework.errors import PipeError, TooBusyError, TooLargeError
from serve.admission import Admission
from serve.config import ServeSettings
from serve.docs import add_docs
from serve.inference_protocol.http import build_protocol_router
from serve.inference_protocol.repository import build_repository_router
from serve.metrics import MeasureRequests, Metrics
from serve.models import Models
from serve.rest import build_router
from serve.schemas import READY_PATH, ErrorResponse, StatusResponse

log = logging.getLogger(__name__)


def build_app(models: Models, settings: ServeSettings | None = None) -> FastAPI:
    """Make the app of models, which stay the caller's to close."""
    limits = (settings or ServeSettings()).limits
    metrics = Metrics(models)
    app = FastAPI(
        title=f"pipework: {', '.join(models.names)}",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    for kind in (PipeError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_middleware(LimitBody, max_bytes=limits.body_bytes)
    app.add_middleware(Admission, models=models)
    app.add_middleware(MeasureRequests, metrics=metrics)
    app.include_router(build_router(models, limits))
    app.include_router(build_protocol_router(models, limits))
    app.include_router(build_repository_router(models))
    _add_health(app, models)
    _add_metrics(app, metrics)
    add_docs(app)
    return app


async def answer_error(_: Request, error: Exception) -> Response:
    """Turn any error into `{"error": one line}` with its status."""
    headers: dict[str, str] = {}
    match error:
        case PipeError():
            status = error.http_status
            text = f"{error}; {error.hint}" if error.hint else str(error)
            if isinstance(error, TooBusyError):
                headers["Retry-After"] = str(error.retry_after_s)
        case HTTPException():
            status, text = error.status_code, str(error.detail)
            headers.update(error.headers or {})
        case _:  # a bug: uvicorn logs the traceback, and the client learns no more than this
            status, text = 500, "internal error; the server's log has the traceback"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("%s %s", status, text)
    return JSONResponse({"error": text}, status, headers)


class LimitBody:
    """ASGI middleware: a body may be so large and no larger, whatever its head says."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        """Wrap an app."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; reading beyond the limit raises TooLargeError."""
        declared = int(dict(scope.get("headers", ())).get(b"content-length", 0))
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if max(read, declared) > self._max_bytes:
                text = f"body: expected at most {self._max_bytes} bytes, found more"
                raise TooLargeError(text)
            return message

        await self._app(scope, limited if scope["type"] == "http" else receive, send)


def _add_health(app: FastAPI, models: Models) -> None:
    errors: dict[int | str, dict[str, Any]] = {
        503: {"model": ErrorResponse, "description": "no, and why"}
    }

    @app.get("/healthz", summary="Alive? If not, restart it", responses=errors)
    async def healthz() -> StatusResponse:
        models.check_alive()
        return StatusResponse(status="alive")

    @app.get(READY_PATH, summary="Ready? If not, send no requests", responses=errors)
    async def readyz() -> StatusResponse:
        models.check_ready()
        return StatusResponse(status="ready")


def _add_metrics(app: FastAPI, metrics: Metrics) -> None:
    @app.get("/metrics", summary="Metrics in Prometheus' text format")
    async def show() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
