"""Predictions as objects and as columns, and the functions that make them from logits.

Shapes: N inputs, C classes.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

Scores = NDArray[np.float32]
Truncated = Annotated[
    bool, Field(description="whether only a part of the text was read, because it is too long")
]
WindowCount = Annotated[
    int, Field(ge=1, description="number of windows that were read: several for a longer text")
]
L = TypeVar("L", bound="SingleLabel")
LABEL = "predicted_label"
SCORE = "predicted_score"
LOW, HIGH = "predicted_low", "predicted_high"
SPANS = "predicted_spans"
HEADS = "predicted_heads"  # all heads in a cell
TRUNCATED, WINDOWS = "truncated", "windows"
LABEL_SCORE = "score_{}"  # the column of the score of a label
SEPARATOR = ", "


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleLabel:
    """The best label with its score, and the scores of all labels, best first."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    label: str
    score: float
    scores: dict[str, float]
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return label and score."""
        return self.label, f"{self.score:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstStageLabel(SingleLabel):
    """A label and scores of the first stage of a cascade."""

    first_stage: Literal[True] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class EscalatedLabel(SingleLabel):
    """A label and scores of another server, because the best score of the model is too low."""

    escalated: Literal[True] = True


@dataclass(frozen=True, kw_only=True, slots=True)
class AbstainedLabel:
    """The fallback label or none, because the best score is too low; scores as in `SingleLabel`.

    `score` is the best score, not that of the fallback label.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    label: str | None = None
    abstained: Literal[True] = True
    score: float
    scores: dict[str, float]
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return the fallback label, or an empty one, and the score."""
        return self.label or "", f"{self.score:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabel:
    """The labels whose scores reach their thresholds, and the scores of all labels, best first."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    labels: tuple[str, ...]
    scores: dict[str, float]
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return the labels and their scores with a separator, or the labels as a list of JSON."""
        scores = (f"{self.scores[label]:.4f}" for label in self.labels if label in self.scores)
        if separator is None:
            return json.dumps(self.labels, ensure_ascii=False), SEPARATOR.join(scores)
        return separator.join(self.labels), separator.join(scores)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressionValue:
    """The predicted number of a regression."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    score: float
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return the number."""
        return (f"{self.score:.4f}",)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressionInterval:
    """The predicted number of a regression, and the interval that holds most true values."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    score: float
    low: float
    high: float
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return the number."""
        return (f"{self.score:.4f}",)


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundSpan:
    """A span of a text: code points [start, end), type, and the mean probability of its tags."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    start: int
    end: int
    label: str
    score: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """The spans of a text, in order."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    spans: tuple[FoundSpan, ...]
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return the spans as a list of JSON."""
        spans = [asdict(span) | {"score": round(span.score, 4)} for span in self.spans]
        return (json.dumps(spans, ensure_ascii=False),)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadPredictions:
    """The prediction of each head of a model with several heads, by the name of the head."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    heads: dict[str, SingleLabel | AbstainedLabel | MultiLabel | Spans]
    truncated: Truncated = False
    windows: WindowCount = 1

    def text_fields(self, separator: str | None = SEPARATOR) -> tuple[str, ...]:
        """Return the predictions as an object of JSON."""
        fields = {
            name: {key: value for key, value in without_marks(head).items() if key != "scores"}
            for name, head in self.heads.items()
        }
        return (json.dumps(fields, ensure_ascii=False),)


def without_marks(head: object) -> dict[str, object]:
    """Return the fields of the prediction of a head, without the marks of its text."""
    fields = asdict(head)  # type: ignore[call-overload]
    return {name: value for name, value in fields.items() if name not in (TRUNCATED, WINDOWS)}


def _marked(one: "Prediction", **marks: Any) -> "Prediction":  # noqa: ANN401
    """Return a prediction, and the predictions of its heads, with other marks."""
    if isinstance(one, HeadPredictions):
        marks["heads"] = {name: replace(head, **marks) for name, head in one.heads.items()}
    return replace(one, **marks)


Prediction = (
    SingleLabel
    | FirstStageLabel
    | EscalatedLabel
    | AbstainedLabel
    | MultiLabel
    | RegressionValue
    | RegressionInterval
    | Spans
    | HeadPredictions
)


class ColumnType(StrEnum):
    """The type of a value, or of the items of a list of values."""

    TEXT = "text"
    NUMBER = "number"
    COUNT = "count"
    FLAG = "flag"
    SPAN = "span"


SPAN_FIELDS = {
    "start": ColumnType.COUNT,
    "end": ColumnType.COUNT,
    "label": ColumnType.TEXT,
    "score": ColumnType.NUMBER,
    "text": ColumnType.TEXT,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedColumn:
    """A column with a value for each input.

    Attributes:
        type: type of a value, or of the items of a list; known also without inputs.
        many: whether each value is a list.
        values: the values.
    """

    type: ColumnType
    many: bool = False
    values: Sequence[Any]


PredictedColumns = dict[str, PredictedColumn]


def span_columns(predictions: Iterable["Prediction"]) -> PredictedColumns:
    """Return the spans of each input, each as a mapping of SPAN_FIELDS."""
    values = [
        [{name: getattr(span, name) for name in SPAN_FIELDS} for span in one.spans]
        for one in predictions
        if isinstance(one, Spans)
    ]
    return {SPANS: PredictedColumn(type=ColumnType.SPAN, many=True, values=values)}


def softmax(logits_NC: Scores) -> Scores:
    """Return the softmax of each row of logits."""
    # For a single text, ndarray.max and .sum take 1.5 times as long.
    shifted_NC = logits_NC - np.maximum.reduce(logits_NC, axis=1, keepdims=True)
    exp_NC = np.exp(shifted_NC, dtype=np.float32)
    sum_N1 = np.add.reduce(exp_NC, axis=1, keepdims=True)
    return np.asarray(exp_NC / sum_N1, np.float32)


def sigmoid(logits_NC: Scores) -> Scores:
    """Return the logistic function of logits."""
    exp_NC = np.exp(-np.abs(logits_NC), dtype=np.float32)  # of non-positive numbers: no overflow
    positive_NC = logits_NC >= 0
    return np.asarray(np.where(positive_NC, 1, exp_NC) / (1 + exp_NC), np.float32)


def ranked_scores(
    scores_NC: Scores, logits_NC: Scores, labels: Sequence[str], top_k: int | None
) -> list[dict[str, float]]:
    """Return the `top_k` best scores of each input by label, or all, in the order of the logits.

    Different logits may have equal scores.
    """
    order_NC = (-logits_NC).argsort(axis=1, kind="stable")
    return [
        {labels[index]: scores_C[index] for index in order_K}
        for scores_C, order_K in zip(scores_NC.tolist(), order_NC[:, :top_k].tolist(), strict=True)
    ]


def single_labels(
    scores_NC: Scores,
    logits_NC: Scores,
    labels: Sequence[str],
    top_k: int | None,
    answered_N: NDArray[np.bool_] | None,
    fallback: str | None = None,
) -> list[Prediction]:
    """Return predictions of the best label; of the fallback for the inputs that are not answered.

    `answered_N` is None if all are; `fallback` is None for no label.
    """
    ranked = ranked_scores(scores_NC, logits_NC, labels, top_k)
    best = [next(iter(scores.items())) for scores in ranked]
    found = [
        SingleLabel(label=label, score=score, scores=scores)
        for (label, score), scores in zip(best, ranked, strict=True)
    ]
    if answered_N is None:
        return [*found]
    return [
        one if answered else AbstainedLabel(label=fallback, score=one.score, scores=one.scores)
        for one, answered in zip(found, answered_N.tolist(), strict=True)
    ]


def marked(kind: type[L], one: SingleLabel) -> L:
    """Return a label as an instance of another class, which marks where it comes from."""
    return kind(
        label=one.label,
        score=one.score,
        scores=one.scores,
        truncated=one.truncated,
        windows=one.windows,
    )


def mark_first_stage(predictions: list[Prediction], rows: Iterable[int]) -> list[Prediction]:
    """Mark the labels of these rows as answers of a first stage, and return all predictions."""
    for row in rows:
        if isinstance(one := predictions[row], SingleLabel):
            predictions[row] = marked(FirstStageLabel, one)
    return predictions


def mark_truncated(predictions: list[Prediction], rows: Iterable[int]) -> list[Prediction]:
    """Set `truncated` of the predictions of these rows, and return all predictions."""
    for row in rows:
        predictions[row] = _marked(predictions[row], truncated=True)
    return predictions


def mark_windows(predictions: list[Prediction], counts: Sequence[int]) -> list[Prediction]:
    """Set `windows` of predictions to these counts, if there are any, and return all."""
    for row, count in enumerate(counts):
        if count > 1:
            predictions[row] = _marked(predictions[row], windows=count)
    return predictions
