"""The protocol over HTTP: `/v2`, as tritonclient asks Triton."""

from typing import Any

from fastapi import APIRouter, Request, Response

from pipework import __version__
from pipework.errors import InputError, TooLargeError
from serve.config import LimitSettings
from serve.headers import read_terms, timing
from serve.inference_protocol.answers import write_answer
from serve.inference_protocol.repository import described
from serve.inference_protocol.requests import HEAD_LENGTH, read_infer
from serve.inference_protocol.tensors import ProtocolError
from serve.models import Answerer, Models
from serve.rest import read_body, unless_gone
from serve.schemas import ErrorResponse
from serve.text_tensors import Texts

PLATFORM = "pipework"
MODEL = "/v2/models/{name}"
VERSION = MODEL + "/versions/{version}"
EXTENSIONS = ["binary_tensor_data", "model_repository"]
TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "not a request of the protocol"},
    404: {"model": ErrorResponse, "description": "no such model or version"},
    413: {"model": ErrorResponse, "description": "too many texts, or too long"},
    429: {"model": ErrorResponse, "description": "the queue is full"},
    503: {"model": ErrorResponse, "description": "stopping, or the engine has died"},
    504: {"model": ErrorResponse, "description": "the deadline of the request has passed"},
}


def build_protocol_router(models: Models, limits: LimitSettings) -> APIRouter:
    """Make the routes of /v2 for the models."""
    router = APIRouter(tags=["Open Inference Protocol"])
    _add_server(router, models)
    _add_model(router, models, limits)
    _add_infer(router, models, limits)
    return router


def _add_server(router: APIRouter, models: Models) -> None:
    @router.get("/v2", summary="What this server is")
    async def server() -> dict[str, Any]:
        return {"name": PLATFORM, "version": __version__, "extensions": EXTENSIONS}

    @router.get("/v2/health/live", summary="Alive?", responses={503: _ERRORS[503]})
    async def live() -> Response:
        models.check_alive()
        return Response()

    @router.get("/v2/health/ready", summary="Ready?", responses={503: _ERRORS[503]})
    async def ready() -> Response:
        models.check_ready()
        return Response()


def _add_model(router: APIRouter, models: Models, limits: LimitSettings) -> None:
    async def metadata(name: str, version: str = "") -> dict[str, Any]:
        with models.lease(name, version) as model:
            return {
                "name": name,
                "versions": [one.version for one in models.versions(name)],
                "platform": PLATFORM,
                "inputs": [_described(one, "BYTES", 1) for one in model.inputs],
                "outputs": [_described(*one) for one in _outputs(model)],
            }

    async def config(name: str, version: str = "") -> dict[str, Any]:
        with models.lease(name, version) as model:
            return {
                "name": name,
                "platform": PLATFORM,
                "backend": PLATFORM,
                "version_policy": described(models.policy(name)),
                "max_batch_size": limits.texts,
                "input": [_configured(one, "BYTES", 1) for one in model.inputs],
                "output": [_configured(*one) for one in _outputs(model)],
            }

    async def ready(name: str, version: str = "") -> Response:
        models.check_model(name, version)
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


def _add_infer(router: APIRouter, models: Models, limits: LimitSettings) -> None:
    async def infer(request: Request, name: str, version: str = "") -> Response:
        terms = read_terms(request.headers)
        body = await read_body(request)
        with models.lease(name, version) as model:
            asked = read_infer(body, request.headers.get(HEAD_LENGTH), model.inputs)
            check_texts(asked.texts, limits)
            try:
                found = await unless_gone(request, model.answer(asked.texts, terms))
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
    router.post(MODEL + "/infer", summary=summary, responses=_ERRORS)(infer)
    router.post(VERSION + "/infer", include_in_schema=False)(infer)


def check_texts(texts: Texts, limits: LimitSettings) -> None:
    """Check the number of texts.

    Raises:
        TooLargeError: there are too many.
    """
    found = len(texts.text)
    if found > limits.texts:
        message = f"inputs: expected at most {limits.texts} texts, found {found}"
        raise TooLargeError(message, "send several requests")


def _outputs(model: Answerer) -> list[tuple[str, str, int]]:
    """Return each output's name, type and width."""
    classes = model.classes
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
