"""The HTTP API: endpoints and pages."""

from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from pipework import __version__
from pipework.errors import PipeError
from pipework.serve.config import EscalationSettings, ServeSettings
from pipework.serve.http.auth import HEALTH, ApiKeys
from pipework.serve.http.errors import handle_error
from pipework.serve.http.openapi import add_docs, customize_openapi, error_responses
from pipework.serve.http.page import add_page
from pipework.serve.http.request_bodies import RequestMemory
from pipework.serve.http.request_handler import RequestHandler
from pipework.serve.http.rest import build_router
from pipework.serve.http.status import build_status_router
from pipework.serve.inference_protocol.http import build_protocol_router
from pipework.serve.inference_protocol.repository import build_repository_router
from pipework.serve.models.registry import Models
from pipework.serve.observability.observers import Observers
from pipework.wire.schemas import READY_PATH, StatusResponse

if TYPE_CHECKING:
    from pipework.serve.http.escalation import Escalation


def build_app(
    models: Models,
    settings: ServeSettings | None = None,
    keys: ApiKeys | None = None,
    observers: Observers | None = None,
    memory: RequestMemory | None = None,
) -> RequestHandler:
    """Create the handler of all requests. The caller closes the models and the observers.

    Raises:
        ConfigError: as `open_escalation`.
    """
    settings = settings or ServeSettings()
    limits, escalation = settings.limits, open_escalation(settings.escalation)
    observers = observers or Observers(models)
    app = FastAPI(
        # The description is public, so it must not contain model names if keys are required.
        title="pipework" if keys else f"pipework: {', '.join(models.leases.names)}",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would send clients to the host of their own header
        # `Observers` does this; switched off, it costs no time per request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for kind in (PipeError, HTTPException):
        app.add_exception_handler(kind, handle_error)
    inference = build_router(limits, escalation), build_protocol_router(models, limits)
    for router in inference:
        app.include_router(router)
    app.include_router(build_repository_router(models, keys=bool(keys)))
    app.include_router(build_status_router(models, observers))
    _add_health(app, models)
    _add_metrics(app, observers)
    add_page(app)
    add_docs(app)
    examples = {} if keys else {"name": next(iter(models.leases.names), "")}
    customize_openapi(app, examples, keys=bool(keys))
    direct = [route for router in (app, *inference) for route in router.routes]
    routes = [route for route in direct if isinstance(route, APIRoute)]
    return RequestHandler(
        app,
        [route for route in routes if route.methods == {"POST"} or route.path in HEALTH],
        models,
        keys=keys or ApiKeys(),
        observers=observers,
        memory=memory or RequestMemory(limits),
    )


def open_escalation(settings: EscalationSettings) -> "Escalation | None":
    """Return the escalation to the server of the settings; None without one.

    Raises:
        ConfigError: the settings are not valid.
    """
    if settings.url is None:
        return None
    from pipework.serve.http.escalation import Escalation  # noqa: PLC0415  (loads httpx)

    return Escalation(settings.url, settings.timeout_s)


def _add_health(app: FastAPI, models: Models) -> None:
    @app.get(
        "/healthz",
        summary="Liveness: restart the server if this fails",
        responses=error_responses(503),
    )
    async def healthz() -> StatusResponse:
        models.check_alive()
        return StatusResponse(status="alive")

    @app.get(
        READY_PATH,
        summary="Readiness: send no requests if this fails",
        responses=error_responses(503),
    )
    async def readyz() -> StatusResponse:
        models.check_ready()
        return StatusResponse(status="; ".join(["ready", *models.problems()]))


def _add_metrics(app: FastAPI, observers: Observers) -> None:
    summary = "Metrics in the Prometheus text format"

    @app.get("/metrics", summary=summary, response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        return Response(observers.metrics_text(), media_type=CONTENT_TYPE_LATEST)
