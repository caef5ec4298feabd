"""The /v1 API: JSON requests and responses."""

from functools import partial
from sys import getsizeof
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response
from pydantic import ValidationError
from pydantic_core import to_json

from pipework.data.examples import Example
from pipework.errors import InputError
from pipework.serve.config import LimitSettings
from pipework.serve.http.exchange import InferenceRequest
from pipework.serve.http.openapi import OPTION_HEADERS, error_responses, request_body
from pipework.serve.request.context import read_options
from pipework.serve.scheduling.loop_bridge import run_for_logits
from pipework.tasks.predictions import Prediction
from pipework.wire.schemas import (
    PREDICT_PATH,
    PredictRequest,
    PredictResponse,
    check_json_values,
    explain,
)

if TYPE_CHECKING:
    from pipework.serve.http.escalation import Escalation

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
_HINT = 'send {"texts": ["..."]}, or see all fields in /docs'


class NotJsonError(InputError):
    """The body is not UTF-8 encoded JSON."""

    http_status = 400


def build_router(limits: LimitSettings, escalation: "Escalation | None" = None) -> APIRouter:
    """Create the routes of /v1."""
    router = APIRouter()

    @router.post(
        PREDICT_PATH,
        summary="Classify texts",
        response_model=PredictResponse,
        responses=error_responses(400, 404, 408, 413, 415, 422, 429, 503, 504),
        openapi_extra={
            "requestBody": request_body(PredictRequest, _EXAMPLES),
            "parameters": OPTION_HEADERS,
        },
    )
    async def predict(request: InferenceRequest) -> Response:
        # The body is parsed here and not by FastAPI: in one strict pass in Rust, which also rejects
        # lone surrogates and deep nesting.
        options = read_options(request.fields)
        predict_request, examples = await request.read(partial(read_request, limits=limits))
        request.memory.resize(sum(map(_size, examples)))
        model = request.model.acquire(predict_request.model, predict_request.version)
        top_k = predict_request.top_k
        predictions = await model.predict(examples, top_k, options)
        if escalation is not None:
            predictions = await escalation.answer(model, examples, predictions, top_k, options)
        write = partial(write_response, model.name, model.version, predictions)
        body = await run_for_logits(len(examples) * model.classes, write)
        return Response(body, media_type="application/json")

    return router


def read_request(body: bytes, limits: LimitSettings) -> tuple[PredictRequest, list[Example]]:
    """Parse a request body, and check its size.

    Raises:
        NotJsonError: the body is not JSON.
        InputError: the body is JSON, but not a valid request; the message has the field and fault.
        TooLargeError: there are too many texts or a text is too long; the message has the limit.
    """
    check_json_values(body, limits.texts)
    try:
        request = PredictRequest.model_validate_json(body)
    except ValidationError as error:
        not_json = error.errors(include_url=False)[0]["type"] == "json_invalid"
        kind = NotJsonError if not_json else InputError
        raise kind(explain(error), _HINT) from error
    limits.check_count(len(request.texts or request.inputs or ()))
    examples = request.examples()
    for index, example in enumerate(examples):
        limits.check_length(example.text, index)
        limits.check_length(example.text_pair or "", index)
    return request, examples


def write_response(model: str, version: str, predictions: list[Prediction]) -> bytes:
    """Return the JSON of a `PredictResponse`.

    Without an instance of it, because its validation takes longer than the serialization.
    """
    response = {"model": model, "version": version, "predictions": predictions}
    return to_json(response, inf_nan_mode="null")


def _size(example: Example) -> int:
    # A single character outside of ASCII makes a text up to four times as large as its bytes.
    return getsizeof(example.text) + getsizeof(example.text_pair)
