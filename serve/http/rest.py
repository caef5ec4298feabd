"""The /v1 API: JSON in, JSON out."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from pipework.data.examples import Example
from pipework.errors import InputError, TooLargeError
from pipework.scoring.predictions import Prediction
from pipework.serve.config import LimitSettings
from pipework.serve.http.disconnect import ClientGoneError, unless_gone
from pipework.serve.http.headers import read_terms, timing
from pipework.serve.http.openapi import TERMS, body_of
from pipework.serve.models.registry import Models
from pipework.serve.schemas import (
    PREDICT_PATH,
    ErrorResponse,
    PredictRequest,
    PredictResponse,
    explain,
)

_EXAMPLES = {
    "texts": {"summary": "texts", "value": {"texts": ["Rates rise again"], "top_k": 3}},
    "pairs": {
        "summary": "pairs of texts",
        "value": {"inputs": [{"text": "It rains.", "text_pair": "The weather is wet."}]},
    },
    "marked": {
        "summary": "texts with two marked entities",
        "value": {"texts": ["The <e1>rain</e1> filled the <e2>barrel</e2>."]},
    },
    "spans": {
        "summary": "texts with two entities by their characters",
        "value": {"inputs": [{"text": "Rain filled it.", "entities": [[0, 4], [12, 14]]}]},
    },
}
_ERRORS = {
    400: "not JSON, or a header that is not what it should be",
    404: "no such model or version",
    408: "the request did not come in time",
    413: "the body, the number of texts or a text is too large",
    415: "the body is compressed with something else than gzip or deflate",
    422: "JSON, but not a request",
    429: "the queue is full; Retry-After says how many seconds to wait",
    503: "stopping, or the engine has died",
    504: "the deadline of the request has passed",
}


class NotJsonError(InputError):
    """The body is not JSON in UTF-8."""

    http_status = 400


def build_router(models: Models, limits: LimitSettings) -> APIRouter:
    """Make the routes of /v1."""
    router = APIRouter()

    @router.post(
        PREDICT_PATH,
        summary="Classify texts",
        response_model=PredictResponse,
        responses={status: _error(text) for status, text in _ERRORS.items()},
        openapi_extra={"requestBody": body_of(PredictRequest, _EXAMPLES), "parameters": TERMS},
    )
    async def predict(request: Request) -> Response:
        # The body is read here and not by FastAPI: one strict pass over the bytes, in Rust,
        # which also refuses lone surrogates and deep nesting.
        terms = read_terms(request.headers)
        asked = parse_request(await read_body(request))
        examples = asked.examples()
        check_limits(examples, limits)
        with models.lease(asked.model, asked.version) as model:
            found = await unless_gone(request, model.predict(examples, asked.top_k, terms))
            body = write_response(model.name, model.version, found.value)
        return Response(body, headers=timing(found.stages), media_type="application/json")

    return router


async def read_body(request: Request) -> bytes:
    """Read the whole body.

    Raises:
        ClientGoneError: the client hung up before its end.
    """
    try:
        return await request.body()
    except ClientDisconnect as error:
        message = "the client is gone"
        raise ClientGoneError(message) from error


def parse_request(body: bytes) -> PredictRequest:
    """Read a request body.

    Raises:
        NotJsonError: it is not JSON.
        InputError: it is JSON, but not a request; the message says where and why.
    """
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            message = f"body: not JSON in UTF-8: {error.errors()[0]['ctx']['error']}"
            raise NotJsonError(message) from error
        raise InputError(explain(error)) from error


def write_response(model: str, version: str, predictions: list[Prediction]) -> bytes:
    """Write a `PredictResponse`, without making one, which takes longer than to write it."""
    answer = {"model": model, "version": version, "predictions": predictions}
    return to_json(answer, inf_nan_mode="null")


def check_limits(examples: list[Example], limits: LimitSettings) -> None:
    """Check the number of texts and their lengths.

    Raises:
        TooLargeError: naming what is too large, and the limit.
    """
    if len(examples) > limits.texts:
        message = f"body: expected at most {limits.texts} texts, found {len(examples)}"
        raise TooLargeError(message, "send several requests")
    for index, example in enumerate(examples):
        longest = max(len(example.text), len(example.text_pair or ""))
        if longest > limits.characters:
            message = (
                f"input {index}: expected at most {limits.characters} characters, found {longest}"
            )
            raise TooLargeError(message)


def _error(description: str) -> dict[str, Any]:
    return {"model": ErrorResponse, "description": description}
