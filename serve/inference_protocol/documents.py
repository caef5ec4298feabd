"""Infer as the description of the HTTP door shows it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from pipework.serve.http.openapi import TERMS, body_of, header
from pipework.serve.inference_protocol.json_codec import HEAD_LENGTH, InferRequest

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
