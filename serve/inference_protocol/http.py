"""The protocol over HTTP: the endpoints under `/v2`, compatible with tritonclient."""

from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from pipework.errors import InputError, TooLargeError
from pipework.serve.config import LimitSettings
from pipework.serve.http.exchange import InferenceRequest
from pipework.serve.http.openapi import (
    OPTION_HEADERS,
    error_responses,
    header_parameter,
    request_body,
)
from pipework.serve.inference_protocol.infer_request import ProtocolError
from pipework.serve.inference_protocol.json_codec import (
    HEAD_LENGTH,
    InferRequest,
    read_infer,
    write_response,
)
from pipework.serve.inference_protocol.metadata import (
    ModelConfig,
    ModelMetadata,
    ServerMetadata,
    StatisticsResponse,
    chosen_versions,
    config,
    metadata,
    statistics,
)
from pipework.serve.models.registry import Models
from pipework.serve.request.context import read_options
from pipework.serve.scheduling.loop_bridge import run_for_logits

HEAD_LENGTH_FIELD = HEAD_LENGTH.lower().encode()
BINARY = {"type": "string", "format": "binary"}
_EXAMPLES = {
    "texts": {
        "summary": "texts, with all outputs",
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
        "summary": "a single output",
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
INFER: dict[str, Any] = {
    "requestBody": request_body(InferRequest, _EXAMPLES, {"application/octet-stream": BINARY}),
    "parameters": [
        *OPTION_HEADERS,
        header_parameter(
            HEAD_LENGTH,
            {"type": "integer", "minimum": 0},
            "length of the JSON in bytes, if tensor data follow it; 0 if the body is a text",
        ),
    ],
}
MODEL = "/v2/models/{name}"
VERSION = MODEL + "/versions/{version}"


class OutputTensorResponse(BaseModel):
    """An output tensor; with the parameter `binary_data_size` its data follow the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[str | float] = []
    parameters: dict[str, int] = {}


class InferResponse(BaseModel):
    """The JSON of a response."""

    model_config = ConfigDict(protected_namespaces=(), json_schema_extra={"example": _ANSWER})

    model_name: str
    model_version: str
    id: str = ""
    parameters: dict[str, str] = Field(
        default={},
        description="`truncated`: the indices of the texts, from 0 and separated by commas, that "
        "are longer than the model reads and were truncated; missing if there are none. `windows`: "
        "the number of windows of each text; missing if each has one",
    )
    outputs: list[OutputTensorResponse]


class LiveResponse(BaseModel):
    """Whether the server is alive; an error status has an error instead."""

    live: Literal[True] = True


class ReadyResponse(BaseModel):
    """Whether the server is ready; an error status has an error instead."""

    ready: Literal[True] = True


class ModelReadyResponse(ReadyResponse):
    """Whether a model is ready; an error status has an error instead."""

    name: str


INFER_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "model": InferResponse,
        "description": "the outputs; binary tensor data follow the JSON",
        "content": {"application/octet-stream": {"schema": BINARY}},
    }
}


def build_protocol_router(models: Models, limits: LimitSettings) -> APIRouter:
    """Create the routes of /v2 for the models."""
    router = APIRouter(tags=["Open Inference Protocol"])
    _add_server(router, models)
    _add_model(router, models, limits)
    _add_infer(router, limits)
    return router


def _add_server(router: APIRouter, models: Models) -> None:
    @router.get("/v2/", include_in_schema=False)
    @router.get("/v2", summary="Name, version and extensions of the server")
    async def server() -> ServerMetadata:
        return ServerMetadata()

    @router.get("/v2/health/live", summary="Alive?", responses=error_responses(503))
    async def live() -> LiveResponse:
        models.check_alive()
        return LiveResponse()

    @router.get("/v2/health/ready", summary="Ready?", responses=error_responses(503))
    async def ready() -> ReadyResponse:
        models.check_ready()
        return ReadyResponse()

    @router.get("/v2/models/stats", summary="Statistics of all models")
    async def stats() -> StatisticsResponse:
        return statistics(models.serving())


def _add_model(router: APIRouter, models: Models, limits: LimitSettings) -> None:
    async def show(name: str, version: str = "") -> ModelMetadata:
        with models.lease(name, version) as model:
            return metadata(model, [served.version for served in models.leases.versions(name)])

    async def configured(name: str, version: str = "") -> ModelConfig:
        with models.lease(name, version) as model:
            return config(model, limits.texts, models.policy(model.name))

    async def stats(name: str, version: str = "") -> StatisticsResponse:
        return statistics(chosen_versions(models, name, version))

    async def ready(name: str, version: str = "") -> ModelReadyResponse:
        models.check_model(name, version)
        return ModelReadyResponse(name=name)

    for path in (MODEL, VERSION):
        for tail, done, summary in (
            ("", show, "A model's tensors"),
            ("/config", configured, "A model's configuration, in Triton's format"),
            ("/stats", stats, "A model's statistics, in Triton's format"),
            ("/ready", ready, "Is a model ready?"),
        ):
            router.get(
                path + tail,
                summary=summary,
                responses=error_responses(404, 503),
                include_in_schema=path == MODEL,
            )(done)


def _add_infer(router: APIRouter, limits: LimitSettings) -> None:
    async def infer(request: InferenceRequest, name: str, version: str = "") -> Response:
        options = read_options(request.fields)
        field = request.fields.get(HEAD_LENGTH_FIELD)
        head_length = None if field is None else field.decode("latin-1")
        model = request.model.acquire(name, version)
        read = partial(read_infer, head_length=head_length, names=model.inputs, limits=limits)
        parsed = await request.read(read)
        try:
            answer = await model.answer(parsed.texts, parsed.options(options))
        except TooLargeError:
            raise
        except InputError as error:
            raise ProtocolError(str(error), error.hint) from error
        write = partial(write_response, parsed, answer, model.name, model.version)
        written, head = await run_for_logits(len(parsed.texts.text) * model.classes, write)
        if head is None:
            return Response(written, media_type="application/json")
        headers = {HEAD_LENGTH: str(head)}
        return Response(written, headers=headers, media_type="application/octet-stream")

    summary = "Classify texts that are sent as tensors"
    responses = INFER_ANSWER | error_responses(400, 404, 408, 413, 415, 429, 503, 504)
    router.post(MODEL + "/infer", summary=summary, responses=responses, openapi_extra=INFER)(infer)
    router.post(VERSION + "/infer", include_in_schema=False)(infer)
