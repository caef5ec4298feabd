"""The protocol over HTTP: `/v2`, as tritonclient asks Triton."""

from threading import Event
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from pipework import __version__
from pipework.errors import InputError, TooLargeError
from serve.inference_protocol.answers import write_answer
from serve.inference_protocol.requests import HEAD_LENGTH, read_infer
from serve.inference_protocol.tensors import ProtocolError
from serve.rest import Answerer, Limits, check_alive, check_ready, read_body, unless_gone
from serve.schemas import ErrorResponse

PLATFORM = "pipework"
MODEL = "/v2/models/{name}"
VERSION = MODEL + "/versions/{version}"
TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "not a request of the protocol"},
    404: {"model": ErrorResponse, "description": "no such model or version"},
    413: {"model": ErrorResponse, "description": "too many texts, or too long"},
    429: {"model": ErrorResponse, "description": "the queue is full"},
    503: {"model": ErrorResponse, "description": "stopping, or the engine has died"},
}


def build_protocol_router(answerer: Answerer, limits: Limits, stopping: Event) -> APIRouter:
    """Make the routes of /v2 for one model."""
    router = APIRouter(tags=["Open Inference Protocol"])
    _add_server(router, answerer, stopping)
    _add_model(router, answerer, limits, stopping)
    _add_infer(router, answerer, limits)
    return router


def _add_server(router: APIRouter, answerer: Answerer, stopping: Event) -> None:
    @router.get("/v2", summary="What this server is")
    async def server() -> dict[str, Any]:
        return {"name": PLATFORM, "version": __version__, "extensions": ["binary_tensor_data"]}

    @router.get("/v2/health/live", summary="Alive?", responses={503: _ERRORS[503]})
    async def live() -> Response:
        check_alive(answerer)
        return Response()

    @router.get("/v2/health/ready", summary="Ready?", responses={503: _ERRORS[503]})
    async def ready() -> Response:
        check_ready(answerer, stopping)
        return Response()


def _add_model(router: APIRouter, answerer: Answerer, limits: Limits, stopping: Event) -> None:
    async def metadata(name: str, version: str = "") -> dict[str, Any]:
        _check_named(answerer, name, version)
        return {
            "name": answerer.name,
            "versions": [answerer.version],
            "platform": PLATFORM,
            "inputs": [_described(one, "BYTES", 1) for one in answerer.inputs],
            "outputs": [_described(*one) for one in _outputs(answerer)],
        }

    async def config(name: str, version: str = "") -> dict[str, Any]:
        _check_named(answerer, name, version)
        return {
            "name": answerer.name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": limits.texts,
            "input": [_configured(one, "BYTES", 1) for one in answerer.inputs],
            "output": [_configured(*one) for one in _outputs(answerer)],
        }

    async def ready(name: str, version: str = "") -> Response:
        _check_named(answerer, name, version)
        check_ready(answerer, stopping)
        return Response()

    for path in (MODEL, VERSION):
        for tail, done, summary in (
            ("", metadata, "A model's tensors"),
            ("/config", config, "A model's configuration, in Triton's form"),
            ("/ready", ready, "Is a model ready?"),
        ):
            router.get(
                path + tail,
                summary=summary,
                responses={404: _ERRORS[404]},
                include_in_schema=path == MODEL,
            )(done)


def _add_infer(router: APIRouter, answerer: Answerer, limits: Limits) -> None:
    async def infer(request: Request, name: str, version: str = "") -> Response:
        _check_named(answerer, name, version)
        asked = read_infer(
            await read_body(request), request.headers.get(HEAD_LENGTH), answerer.inputs
        )
        if len(asked.texts.text) > limits.texts:
            found = len(asked.texts.text)
            message = f"inputs: expected at most {limits.texts} texts, found {found}"
            raise TooLargeError(message, "send several requests")
        try:
            answer = await unless_gone(request, answerer.answer(asked.texts))
        except TooLargeError:
            raise
        except InputError as error:
            raise ProtocolError(str(error), error.hint) from error
        body, head = write_answer(asked, answer, answerer.name, answerer.version)
        if head is None:
            return Response(body, media_type="application/json")
        headers = {HEAD_LENGTH: str(head)}
        return Response(body, headers=headers, media_type="application/octet-stream")

    summary = "Classify texts as tensors"
    router.post(MODEL + "/infer", summary=summary, responses=_ERRORS)(infer)
    router.post(VERSION + "/infer", include_in_schema=False)(infer)


def _check_named(answerer: Answerer, name: str, version: str) -> None:
    if name != answerer.name:
        message = f"there is no model {name[:50]!r}; there is {answerer.name!r}"
        raise HTTPException(404, message)
    if version and version != answerer.version:
        message = f"there is no version {version[:50]!r} of {name!r}; there is {answerer.version!r}"
        raise HTTPException(404, message)


def _outputs(answerer: Answerer) -> list[tuple[str, str, int]]:
    """Return each output's name, type and width."""
    classes = answerer.classes
    return [
        ("label", "BYTES", 1),
        ("score", "FP32", 1),
        ("probabilities", "FP32", classes),
        ("logits", "FP32", classes),
    ]


def _described(name: str, datatype: str, width: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1, width]}


def _configured(name: str, datatype: str, width: int) -> dict[str, Any]:
    return {"name": name, "data_type": TYPES[datatype], "dims": [width]}
