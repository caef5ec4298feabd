"""The doors: routes, and what stands before them."""

from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from pipework import __version__
from pipework.errors import PipeError
from pipework.serve.config import ServeSettings
from pipework.serve.http.admission import RefuseBusy
from pipework.serve.http.auth import ApiKeys, KeyGuard
from pipework.serve.http.compression import CompressAnswers
from pipework.serve.http.direct_routes import Asking, Direct
from pipework.serve.http.errors import answer_error
from pipework.serve.http.openapi import add_docs, complete
from pipework.serve.http.page import add_page
from pipework.serve.http.request_bodies import ReadBodies
from pipework.serve.http.rest import build_router
from pipework.serve.http.shutdown import LastAnswers
from pipework.serve.http.status import build_status_router
from pipework.serve.inference_protocol.http import build_protocol_router
from pipework.serve.inference_protocol.repository import build_repository_router
from pipework.serve.models.registry import Models
from pipework.serve.observability.metrics import Metrics
from pipework.serve.observability.observers import Watch, WatchRequests
from pipework.serve.schemas import READY_PATH, ErrorResponse, StatusResponse


def build_app(
    models: Models,
    settings: ServeSettings | None = None,
    keys: ApiKeys | None = None,
    watch: Watch | None = None,
) -> FastAPI:
    """Make the app of models and of what watches them, which stay the caller's to close."""
    limits = (settings or ServeSettings()).limits
    watch = watch or Watch(models)
    app = FastAPI(
        # Who has no key may read the description, and learns no names of models.
        title="pipework" if keys else f"pipework: {', '.join(models.names)}",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        # Requests are watched by `Watch`; what is off is not looked for at each of them.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for kind in (PipeError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_error)
    simple, protocol = build_router(models, limits), build_protocol_router(models, limits)
    app.state.asking = Asking(simple, protocol)
    app.add_middleware(Direct, asking=app.state.asking)
    app.add_middleware(ReadBodies, max_bytes=limits.body_bytes)
    app.add_middleware(CompressAnswers)
    app.add_middleware(RefuseBusy, models=models)
    app.add_middleware(LastAnswers)
    app.add_middleware(KeyGuard, keys=keys or ApiKeys())
    app.add_middleware(WatchRequests, watch=watch)  # the outermost: it sees all that is refused
    app.include_router(simple)
    app.include_router(protocol)
    app.include_router(build_repository_router(models))
    app.include_router(build_status_router(models, watch.recent))
    _add_health(app, models)
    _add_metrics(app, watch.metrics)
    add_page(app)
    add_docs(app)
    examples = {} if keys else {"name": next(iter(models.names), "")}
    complete(app, examples, keys=bool(keys))
    return app


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
    summary = "Metrics in Prometheus' text format"

    @app.get("/metrics", summary=summary, response_class=PlainTextResponse)
    async def show() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
