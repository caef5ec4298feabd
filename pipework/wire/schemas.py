"""Requests and responses of the HTTP API, for server and client, and their error messages."""

import json
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipework.data.entities import Spans
from pipework.data.examples import Example
from pipework.errors import TooLargeError
from pipework.tasks.predictions import Prediction

PREDICT_PATH = "/v1/predict"
SPLIT_HINT = "split the texts into several requests"  # of too many texts, or too large a body
READY_PATH = "/readyz"
STATUS_PATH = "/v1/status"
TOP_K = "a whole number of at least 1"
ENTITIES = 2
SHOWN_NUMBER = 10**9  # errors do not show larger numbers, which may have thousands of digits
# JSON values of a request: a text with a pair and two entities has 10, and there are a few others.
VALUES_PER_TEXT = 16
OTHER_VALUES = 1024
ESCAPES = (b"\\\\", b'\\"')  # longer ones first, so that the second is an escaped quote


class _Strict(BaseModel):
    """Model without type conversion and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_Span = Annotated[list[int], Field(min_length=2, max_length=2)]
_Spans = Annotated[list[_Span], Field(min_length=ENTITIES, max_length=ENTITIES)]


class TextInput(_Strict):
    """A text, a pair of texts, or a text with two entities, depending on the model.

    Entities are marked in the text, `<e1>..</e1>` and `<e2>..</e2>`, or passed in `entities`.
    """

    text: str
    text_pair: str | None = None
    entities: _Spans | None = Field(
        default=None,
        description="[start, end] of the first and of the second entity, for a text without marks: "
        "character offsets from 0, the end excluded",
    )

    @classmethod
    def of(cls, example: Example) -> Self:
        """Return the input for an example."""
        entities = None if example.entities is None else [list(span) for span in example.entities]
        return cls(text=example.text, text_pair=example.text_pair, entities=entities)

    def example(self) -> Example:
        """Return the example for this input."""
        entities: Spans | None = None
        if self.entities is not None:
            (start1, end1), (start2, end2) = self.entities
            entities = ((start1, end1), (start2, end2))
        return Example(text=self.text, text_pair=self.text_pair, entities=entities)


class PredictRequest(_Strict):
    """Texts to classify, either as `texts` or as `inputs`."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["texts"]}, {"required": ["inputs"]}]}
    )

    # fail_fast: an error object for each element of a large list takes minutes and gigabytes.
    texts: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    inputs: Annotated[list[TextInput], Field(min_length=1, fail_fast=True)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="number of labels in the scores, best first; default: all labels"
    )
    model: str = Field(default="", description="name of the model, if the server has several")
    version: str = Field(default="", description="version of the model; default: the newest")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.texts is None) == (self.inputs is None):
            message = "expected exactly one of texts and inputs"
            raise ValueError(message)
        return self

    def examples(self) -> list[Example]:
        """Return the examples, in order."""
        if self.inputs is not None:
            return [item.example() for item in self.inputs]
        return [Example(text=text) for text in self.texts or ()]


class PredictResponse(BaseModel):
    """Predictions in the order of the inputs; `labels` and `scores` are sorted, best first.

    The model determines the kind of all predictions: one label, several labels, or a number.
    """

    model: str
    version: str
    predictions: list[Prediction]


class ErrorResponse(BaseModel):
    """An error message, in one line."""

    error: str


class StatusResponse(BaseModel):
    """Status of a healthy server."""

    status: str


def check_json_values(body: bytes, texts: int) -> None:
    """Check that JSON has not many more values than a request with this number of texts.

    Parsers use up to 100 bytes of memory for a value of two bytes, so this precedes the parser.
    Valid JSON is counted exactly, and so is what a parser reads of other data before its error.

    Raises:
        TooLargeError: it has more.
    """
    most = VALUES_PER_TEXT * texts + OTHER_VALUES
    if _separators(body) <= most:
        return
    # Count again without strings. They have two quotes each.
    for escape in ESCAPES:
        body = body.replace(escape, b"")
    if body.count(b'"') > 2 * most or _separators(b"".join(body.split(b'"')[::2])) > most:
        message = f"body: expected at most {texts} texts, found more than {most} JSON values"
        raise TooLargeError(message, SPLIT_HINT)


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def explain(error: ValidationError) -> str:
    """Return the first validation error in one line: field, expected and found."""
    first = error.errors(include_url=False)[0]
    place = first["loc"]
    if first["type"] == "string_type" and place[-1] == "str":  # the first type of a union
        place = place[:-1]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    message = first["msg"].removeprefix("Value error, ")
    message = message.replace("Invalid JSON:", "expected JSON in UTF-8:")
    match first["type"]:
        case "value_error" | "json_invalid":
            fault = message
        case "missing":
            fault = "is missing"
        case "too_short" if not first["input"]:
            fault = "expected at least one item, found none"
        case "too_long" if (most := first["ctx"]["max_length"]) > ENTITIES:
            fault = f"expected at most {most} items, found {len(first['input'])}"
        case "too_short" | "too_long":
            fault = f"expected two items, found {len(first['input'])}"
        case "extra_forbidden":
            fault = "is not a known field"
        case kind:
            expected = TOP_K if place == ("top_k",) else message.removeprefix("Input should be ")
            numeric = kind.startswith(("int_", "greater_", "less_"))
            value = first["input"]
            fault = f"expected {expected}, found {_number(value) if numeric else _type_name(value)}"
    return f"{where.lstrip('.') or 'body'}: {fault}"


def _number(value: object) -> str:
    """Format a number for an error message; for other values and long numbers, name the type."""
    short = isinstance(value, int | float) and abs(value) < SHOWN_NUMBER
    return json.dumps(value) if short else _type_name(value)


def _type_name(value: object) -> str:
    # The type, not the value: a value may be large or private, and errors are logged.
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"
