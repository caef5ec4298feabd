"""The protocol over HTTP: `/v2`, as tritonclient asks Triton."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, JsonValue

from pipework.errors import InputError, TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.http.disconnect import unless_gone
from pipework.serve.http.headers import read_terms, timing
from pipework.serve.http.openapi import TERMS, body_of, header
from pipework.serve.http.rest import read_body
from pipework.serve.inference_protocol.infer_request import check_texts
from pipework.serve.inference_protocol.infer_response import write_answer
from pipework.serve.inference_protocol.json_codec import HEAD_LENGTH, InferRequest, read_infer
from pipework.serve.inference_protocol.metadata import (
    ModelConfig,
    ModelMetadata,
    ServerMetadata,
    config,
    metadata,
)
from pipework.serve.inference_protocol.statistics import (
    StatisticsAnswer,
    chosen_versions,
    statistics,
)
from pipework.serve.inference_protocol.tensors import ProtocolError
from pipework.serve.models.registry import Models
from pipework.serve.schemas import ErrorResponse

BINARY = {"type": "string", "format": "binary"}
_EXAMPLES = {
    "texts": {
        "summary": "texts, answered with every output",
        "value": {
            "inputs": [
                {
                    "name": "text",
                    "shape": [2, 1],
                    "datatype": "BYTES",
                    "data": ["It rains.", "Goal!"],
                }
            ]
        },
    },
    "one output": {
        "summary": "one of the outputs",
        "value": {
            "id": "7",
            "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["It rains."]}],
            "outputs": [{"name": "label"}],
        },
    },
}
_ANSWER: dict[str, JsonValue] = {
    "model_name": "topics",
    "model_version": "1",
    "outputs": [{"name": "label", "datatype": "BYTES", "shape": [1, 1], "data": ["weather"]}],
}


class OutputAnswer(BaseModel):
    """A tensor; with `binary_data_size` among the parameters its data are behind the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[str | float] = []
    parameters: dict[str, int] = {}


class InferAnswer(BaseModel):
    """The JSON of an answer."""

    model_config = ConfigDict(protected_namespaces=(), json_schema_extra={"example": _ANSWER})

    model_name: str
    model_version: str
    id: str = ""
    outputs: list[OutputAnswer]


INFER: dict[str, Any] = {
    "requestBody": body_of(InferRequest, _EXAMPLES, {"application/octet-stream": BINARY}),
    "parameters": [
        *TERMS,
        header(
            HEAD_LENGTH,
            {"type": "integer", "minimum": 0},
            "bytes of JSON, where the data of tensors come behind it",
        ),
    ],
}
INFER_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "model": InferAnswer,
        "description": "the outputs; with tensors as bytes, their data come behind the JSON",
        "content": {"application/octet-stream": {"schema": BINARY}},
    }
}


MODEL = "/v2/models/{name}"
VERSION = MODEL + "/versions/{version}"
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "not a request of the protocol"},
    404: {"model": ErrorResponse, "description": "no such model or version"},
    408: {"model": ErrorResponse, "description": "the request did not come in time"},
    413: {"model": ErrorResponse, "description": "too many texts, or too long"},
    415: {"model": ErrorResponse, "description": "compressed with neither gzip nor deflate"},
    429: {"model": ErrorResponse, "description": "the queue is full"},
    503: {"model": ErrorResponse, "description": "stopping, or the engine has died"},
    504: {"model": ErrorResponse, "description": "the deadline of the request has passed"},
}

_HEALTH: dict[int | str, dict[str, Any]] = {503: _ERRORS[503]}


def build_protocol_router(models: Models, limits: LimitSettings) -> APIRouter:
    """Make the routes of /v2 for the models."""
    router = APIRouter(tags=["Open Inference Protocol"])
    _add_server(router, models)
    _add_model(router, models, limits)
    _add_infer(router, models, limits)
    return router


def _add_server(router: APIRouter, models: Models) -> None:
    @router.get("/v2", summary="What this server is")
    async def server() -> ServerMetadata:
        return ServerMetadata()

    @router.get("/v2/health/live", summary="Alive?", responses=_HEALTH, response_class=Response)
    async def live() -> Response:
        models.check_alive()
        return Response()

    @router.get("/v2/health/ready", summary="Ready?", responses=_HEALTH, response_class=Response)
    async def ready() -> Response:
        models.check_ready()
        return Response()

    @router.get("/v2/models/stats", summary="What all models have done")
    async def stats() -> StatisticsAnswer:
        return statistics(models.serving())


def _add_model(router: APIRouter, models: Models, limits: LimitSettings) -> None:
    async def show(name: str, version: str = "") -> ModelMetadata:
        with models.lease(name, version) as model:
            return metadata(model, [one.version for one in models.versions(name)])

    async def configured(name: str, version: str = "") -> ModelConfig:
        with models.lease(name, version) as model:
            return config(model, limits.texts, models.policy(model.name))

    async def stats(name: str, version: str = "") -> StatisticsAnswer:
        return statistics(chosen_versions(models, name, version))

    async def ready(name: str, version: str = "") -> Response:
        models.check_model(name, version)
        return Response()

    for path in (MODEL, VERSION):
        for tail, done, summary, form in (
            ("", show, "A model's tensors", JSONResponse),
            ("/config", configured, "A model's configuration, in Triton's form", JSONResponse),
            ("/stats", stats, "What a model has done, in Triton's form", JSONResponse),
            ("/ready", ready, "Is a model ready?", Response),
        ):
            router.get(
                path + tail,
                summary=summary,
                responses={404: _ERRORS[404], **_HEALTH},
                response_class=form,
                include_in_schema=path == MODEL,
            )(done)


def _add_infer(router: APIRouter, models: Models, limits: LimitSettings) -> None:
    async def infer(request: Request, name: str, version: str = "") -> Response:
        terms = read_terms(request.headers)
        body = await read_body(request)
        with models.lease(name, version) as model:
            asked = read_infer(body, request.headers.get(HEAD_LENGTH), model.inputs, limits)
            check_texts(asked.texts, limits)
            answer = model.answer(asked.texts, asked.terms(terms))
            try:
                found = await unless_gone(request, answer)
            except TooLargeError:
                raise
            except InputError as error:
                raise ProtocolError(str(error), error.hint) from error
            written, head = write_answer(asked, found.value, model.name, model.version)
        headers = timing(found.stages)
        if head is None:
            return Response(written, headers=headers, media_type="application/json")
        headers[HEAD_LENGTH] = str(head)
        return Response(written, headers=headers, media_type="application/octet-stream")

    summary = "Classify texts as tensors"
    responses = INFER_ANSWER | _ERRORS
    router.post(MODEL + "/infer", summary=summary, responses=responses, openapi_extra=INFER)(infer)
    router.post(VERSION + "/infer", include_in_schema=False)(infer)
