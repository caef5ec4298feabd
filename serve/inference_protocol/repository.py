"""The protocol's extension that lists, loads and unloads the models of a repository.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, ValidationError

from pipework.serve.http.openapi import body_of
from pipework.serve.http.rest import read_body
from pipework.serve.inference_protocol.infer_request import Value
from pipework.serve.inference_protocol.tensors import ProtocolError
from pipework.serve.models.registry import Entry, Models
from pipework.serve.schemas import ErrorResponse, explain

REPOSITORY = "/v2/repository"
# What Triton would take in place of the files that are there: code of a stranger.
SENT = ("config", "file:")
B = TypeVar("B", bound=BaseModel)
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "not a request, or the model cannot be served"},
    403: {"model": ErrorResponse, "description": "models are not loaded on request here"},
    404: {"model": ErrorResponse, "description": "no such model"},
    408: {"model": ErrorResponse, "description": "the request did not come in time"},
    413: {"model": ErrorResponse, "description": "the body is too large"},
    415: {"model": ErrorResponse, "description": "compressed with neither gzip nor deflate"},
    503: {"model": ErrorResponse, "description": "stopping"},
}
_INDEX = {"ready ones": {"summary": "those that are ready", "value": {"ready": True}}}
_CONTROL = {"nothing": {"summary": "there is nothing to choose", "value": {}}}


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class IndexRequest(_Body):
    """Which versions to list: all, or only those that are ready."""

    ready: bool = False


class ControlRequest(_Body):
    """What Triton's clients send with a model's name; nothing of it changes what is done."""

    parameters: dict[str, Value] = {}


def build_repository_router(models: Models) -> APIRouter:
    """Make the routes of /v2/repository."""
    router = APIRouter(tags=["Open Inference Protocol"])

    @router.post(
        REPOSITORY + "/index",
        summary="Which models and versions are there, and which are ready",
        responses={status: _ERRORS[status] for status in (400, 408, 413, 415)},
        openapi_extra={"requestBody": body_of(IndexRequest, _INDEX, required=False)},
    )
    async def index(request: Request) -> list[dict[str, str]]:
        asked = _parsed(IndexRequest, await read_body(request))
        return [_listed(one) for one in models.index() if one.ready or not asked.ready]

    @router.post(
        REPOSITORY + "/models/{name}/load",
        summary="Take up what is new of a model",
        responses=_ERRORS,
        response_class=Response,
        openapi_extra={"requestBody": body_of(ControlRequest, _CONTROL, required=False)},
    )
    async def load(request: Request, name: str) -> Response:
        models.check_control()
        check_nothing_sent(_parsed(ControlRequest, await read_body(request)).parameters)
        await models.load(name)
        return Response()

    @router.post(
        REPOSITORY + "/models/{name}/unload",
        summary="Serve a model no more, until it is loaded",
        responses=_ERRORS,
        response_class=Response,
        openapi_extra={"requestBody": body_of(ControlRequest, _CONTROL, required=False)},
    )
    async def unload(request: Request, name: str) -> Response:
        models.check_control()
        _parsed(ControlRequest, await read_body(request))
        await models.unload(name)
        return Response()

    return router


def check_nothing_sent(parameters: Iterable[str]) -> None:
    """Check that a request to load brings no config and no files.

    Raises:
        ProtocolError: it does.
    """
    sent = [name for name in parameters if name.startswith(SENT)]
    if sent:
        message = f"parameter {sent[0][:50]!r}: models are loaded from the repository only"
        raise ProtocolError(message, "add a version: pipe export RUN --to triton")


def _parsed(form: type[B], body: bytes) -> B:
    try:
        return form.model_validate_json(body or b"{}")
    except ValidationError as error:
        bad = error.errors()[0]["type"] == "json_invalid"
        message = "body: expected a JSON object in UTF-8" if bad else explain(error)
        raise ProtocolError(message) from error


def _listed(one: Entry) -> dict[str, str]:
    shown = {"name": one.name, "version": one.version, "state": one.state, "reason": one.reason}
    return {key: value for key, value in shown.items() if value}
