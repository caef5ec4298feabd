"""The model repository extension of the protocol: lists, loads and unloads models.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from pipework.errors import TooLargeError
from pipework.serve.http.auth import check_origin
from pipework.serve.http.openapi import error_responses, request_body
from pipework.serve.inference_protocol.infer_request import JsonParameters, ProtocolError
from pipework.serve.models.registry import Change, Entry, Models
from pipework.wire.schemas import explain

REPOSITORY = "/v2/repository"
# Parameters by which Triton accepts a config and files in a request: untrusted code.
SENT = ("config", "file:")
MAX_BODY_BYTES = 64 * 2**10  # a body has only a few options
B = TypeVar("B", bound=BaseModel)
_INDEX = {"ready ones": {"summary": "only versions that are ready", "value": {"ready": True}}}
_CONTROL = {"nothing": {"summary": "there are no options", "value": {}}}


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class IndexRequest(_Body):
    """Which versions to list: all, or only those that are ready."""

    ready: bool = False


class ControlRequest(_Body):
    """The body that Triton's clients send to load or unload; its parameters have no effect."""

    parameters: JsonParameters = {}


def build_repository_router(models: Models, *, keys: bool) -> APIRouter:
    """Create the routes of /v2/repository; `keys`: an API key is required."""
    router = APIRouter(tags=["Open Inference Protocol"])

    @router.post(
        REPOSITORY + "/index",
        summary="List models and versions with their states",
        responses=error_responses(400, 408, 413, 415),
        openapi_extra={"requestBody": request_body(IndexRequest, _INDEX, required=False)},
    )
    async def index(request: Request) -> list[dict[str, str]]:
        options = _parsed(IndexRequest, await request.body())
        return [_listed(entry) for entry in models.index() if entry.ready or not options.ready]

    summaries = {
        Change.LOAD: "Load new versions of a model",
        Change.UNLOAD: "Unload a model until it is loaded again",
    }
    for change, summary in summaries.items():
        router.post(
            f"{REPOSITORY}/models/{{name}}/{change}",
            summary=summary,
            responses=error_responses(400, 403, 404, 408, 413, 415, 503),
            response_class=Response,
            openapi_extra={"requestBody": request_body(ControlRequest, _CONTROL, required=False)},
        )(_control(models, change, keys=keys))
    return router


def _control(
    models: Models, change: Change, *, keys: bool
) -> Callable[[Request, str], Awaitable[Response]]:
    async def control(request: Request, name: str) -> Response:
        models.check_control()
        if not keys:  # a web page of another site has none
            check_origin(request.headers)
        parameters = _parsed(ControlRequest, await request.body()).parameters
        if change is Change.LOAD:
            check_nothing_sent(parameters)
        await models.request(change, name)
        return Response()

    return control


def check_nothing_sent(parameters: Iterable[str]) -> None:
    """Check that a request to load has no config and no files.

    Raises:
        ProtocolError: it has.
    """
    sent = [name for name in parameters if name.startswith(SENT)]
    if sent:
        message = f"parameter {sent[0][:50]!r}: models are loaded from the repository only"
        raise ProtocolError(message, "add a version: pipe export RUN --to triton")


def _parsed(form: type[B], body: bytes) -> B:
    if len(body) > MAX_BODY_BYTES:
        message = f"body: expected at most {MAX_BODY_BYTES} bytes, found {len(body)}"
        raise TooLargeError(message)
    try:
        return form.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise ProtocolError(explain(error)) from error


def _listed(entry: Entry) -> dict[str, str]:
    return {name: value for name, value in asdict(entry).items() if value}
