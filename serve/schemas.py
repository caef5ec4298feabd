"""What goes over HTTP, for the server and the client alike, and its errors in words."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipework.data.entities import Spans
from pipework.data.examples import Example
from pipework.scoring.predictions import Prediction

PREDICT_PATH = "/v1/predict"
READY_PATH = "/readyz"


class _Strict(BaseModel):
    """No guessing: a number is no string, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_Span = Annotated[list[int], Field(min_length=2, max_length=2)]


class TextInput(_Strict):
    """One text, two for a model that compares them, or one with two entities.

    Entities are marked in the text, `<e1>..</e1>` and `<e2>..</e2>`, or given by `entities`.
    """

    text: str
    text_pair: str | None = None
    entities: Annotated[list[_Span], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="first and last character, counted from 0 and the last not included, of the "
        "first entity and of the second, in a text without marks",
    )

    @classmethod
    def of(cls, example: Example) -> Self:
        """Return an input as it is sent."""
        entities = None if example.entities is None else [list(span) for span in example.entities]
        return cls(text=example.text, text_pair=example.text_pair, entities=entities)

    def example(self) -> Example:
        """Return the input as the model's parts know it."""
        entities: Spans | None = None
        if self.entities is not None:
            (start1, end1), (start2, end2) = self.entities
            entities = ((start1, end1), (start2, end2))
        return Example(text=self.text, text_pair=self.text_pair, entities=entities)


class PredictRequest(_Strict):
    """Texts to classify, as plain `texts` or as `inputs`; exactly one of the two."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["texts"]}, {"required": ["inputs"]}]}
    )

    texts: Annotated[list[str], Field(min_length=1)] | None = None
    inputs: Annotated[list[TextInput], Field(min_length=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="how many labels to score, best first; all if left out"
    )
    model: str = Field(default="", description="of several models, which")
    version: str = Field(default="", description="of the model; the newest if left out")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.texts is None) == (self.inputs is None):
            message = "expected exactly one of texts and inputs"
            raise ValueError(message)
        return self

    def examples(self) -> list[Example]:
        """Return the inputs in order."""
        if self.inputs is not None:
            return [one.example() for one in self.inputs]
        return [Example(text=text) for text in self.texts or ()]


class PredictResponse(BaseModel):
    """The predictions in the order of the inputs; `labels` and `scores` are best first.

    All are of the kind that the model decides: one label, several, or a number.
    """

    model: str
    version: str
    predictions: list[Prediction]


class ErrorResponse(BaseModel):
    """What went wrong, in one line."""

    error: str


class StatusResponse(BaseModel):
    """All is well."""

    status: str


def explain(error: ValidationError) -> str:
    """Say the first fault in one line: where, what was expected, what was found."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    what = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "value_error":
            fault = what
        case "missing":
            fault = "is missing"
        case "too_short" if not first["input"]:
            fault = "expected at least one, found none"
        case "too_short" | "too_long":
            fault = f"expected two, found {len(first['input'])}"
        case "extra_forbidden":
            fault = "is not a known field"
        case _:
            expected = what.removeprefix("Input should be ")
            fault = f"expected {expected}, found {_found(first['input'])}"
    return f"{where.lstrip('.') or 'body'}: {fault}"


def _found(value: object) -> str:
    # The kind, not the value: a value may be megabytes, or a person's text in somebody's log.
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"
