"""Converts texts to tensors of the Open Inference Protocol, and output tensors to predictions.

The protocol has no metadata for class names. If the server supports classifications
(`value:index:label`), the names are read from one; otherwise predictions have only their label.

Shapes: N texts, C classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.tasks.predictions import (
    AbstainedLabel,
    FoundSpan,
    HeadPredictions,
    MultiLabel,
    Prediction,
    RegressionValue,
    SingleLabel,
    Spans,
    mark_truncated,
    mark_windows,
)
from pipework.wire.text_tensors import ROWS, TEXT, TEXT_PAIR, TRUNCATED, WINDOWS

DATATYPES = {"label": "BYTES", "score": "FP32", "probabilities": "FP32"}
OUTPUTS = tuple(DATATYPES)
SPANS = TypeAdapter(tuple[FoundSpan, ...])
HEADS = TypeAdapter(HeadPredictions)
OBJECT = '{"heads": {'  # how the label of a model with several heads begins
SUM_TOLERANCE = 1e-4  # of the sum of single-label probabilities, which should be 1
Tensors = Mapping[str, Sequence[bytes]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseTensor:
    """An output of a response; `datatype` is "" if the server sends none.

    `read` returns the elements in a row, text as `str`; it raises ValueError or struct.error.
    """

    datatype: str
    shape: Sequence[int]
    read: Callable[[], Sequence[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolResponse:
    """A response of the protocol; `version` may be ""."""

    version: str
    parameters: Mapping[str, str]
    tensors: Mapping[str, ResponseTensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class InferOutputs:
    """The output tensors of a response.

    Attributes:
        version: version of the model; "" if the server sends none.
        parameters: the response parameters, see `pipework.wire.text_tensors`.
        decoded: the prediction of each text, of a model that finds spans or has several heads: its
            labels are JSON, and its probabilities may have rows for tokens.
    """

    label_N: Sequence[str]
    score_N: NDArray[np.float32]
    probabilities_NC: NDArray[np.float32]
    version: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    decoded: Sequence[Spans | HeadPredictions] | None = None

    @classmethod
    def of(cls, response: ProtocolResponse) -> "InferOutputs":
        """Read the tensors of a response that has all of them.

        Raises:
            ValueError: one has another datatype or shape, or cannot be read.
        """
        for name, expected in DATATYPES.items():
            found = response.tensors[name].datatype
            if found not in ("", expected):
                message = f"expected {name} as {expected}, found {found:.20}"
                raise ValueError(message)
        label, score, probabilities = (response.tensors[name] for name in OUTPUTS)
        values = np.array(probabilities.read(), np.float32)
        labels = [str(name) for name in label.read()]
        per_token = ROWS in response.tensors or [*probabilities.shape[:1]] != [len(labels)]
        return cls(
            label_N=labels,
            score_N=np.array(score.read(), np.float32),
            probabilities_NC=values.reshape(probabilities.shape),
            version=response.version,
            parameters=response.parameters,
            decoded=_decoded(labels, spans=per_token),
        )

    @property
    def truncated_rows(self) -> list[int]:
        """The indices of the truncated texts."""
        return self._numbers(TRUNCATED)

    @property
    def windows(self) -> list[int]:
        """The number of windows of each text; empty if each has one."""
        return self._numbers(WINDOWS)

    def _numbers(self, name: str) -> list[int]:
        return [int(row) for row in filter(None, self.parameters.get(name, "").split(","))]

    def check(self, count: int) -> None:
        """Check that there are outputs for each of `count` texts.

        Raises:
            ValueError: the shapes are different, or a parameter does not fit the texts.
        """
        shape = self.probabilities_NC.shape
        rows = {len(self.label_N), len(self.score_N)}
        if self.decoded is None:
            rows |= {*shape[:1]}
        if len(shape) != len("NC") or rows != {count}:
            message = f"expected probabilities [{count}, C], found {[*shape]}"
            raise ValueError(message)
        if not {*self.truncated_rows} <= {*range(count)}:
            found = self.parameters[TRUNCATED]
            message = f"{TRUNCATED}: expected indices of {count} texts, found {found:.50}"
            raise ValueError(message)
        if len(self.windows) not in (0, count) or min(self.windows, default=1) < 1:
            found = self.parameters[WINDOWS]
            message = f"{WINDOWS}: expected a number for each of {count} texts, found {found:.50}"
            raise ValueError(message)


def tensors(examples: Sequence[Example]) -> Tensors:
    """Return the input tensors by name; entities are marked in their text."""
    inputs = {TEXT: [_marked(example).encode() for example in examples]}
    pairs = [example.text_pair for example in examples if example.text_pair is not None]
    if pairs:
        inputs[TEXT_PAIR] = [pair.encode() for pair in pairs]
    return inputs


def packed_texts(values: Sequence[bytes]) -> bytes:
    """Return the elements of a BYTES tensor, each after its length."""
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def label_names(classified: Sequence[str]) -> tuple[str, ...]:
    """Return the labels in class order, from the `value:index:label` elements of one text.

    Empty if a class has no name.
    """
    parts = [element.split(":", 2) for element in classified]
    named = {int(part[1]): part[2] for part in parts if len(part) == len(OUTPUTS)}
    return tuple(named[index] for index in sorted(named)) if len(named) == len(parts) else ()


def predictions(
    outputs: InferOutputs, names_C: Sequence[str], top_k: int | None
) -> list[Prediction]:
    """Return predictions in the form of our own API; `scores` has the `top_k` best.

    Raises:
        PipeError: the number of classes differs from the number of names.
    """
    found = mark_truncated(_predictions(outputs, names_C, top_k), outputs.truncated_rows)
    return mark_windows(found, outputs.windows)


def _predictions(
    outputs: InferOutputs, names_C: Sequence[str], top_k: int | None
) -> list[Prediction]:
    if outputs.decoded is not None:
        return [_best(one, top_k) for one in outputs.decoded]
    classes = outputs.probabilities_NC.shape[1]
    if classes == 1 and not any(outputs.label_N):
        return [RegressionValue(score=float(score)) for score in outputs.score_N]
    one_label = bool((np.abs(outputs.probabilities_NC.sum(axis=1) - 1) < SUM_TOLERANCE).all())
    if not names_C:
        return [
            SingleLabel(label=label, score=float(score), scores={label: float(score)})
            if label or not one_label
            else AbstainedLabel(score=float(score), scores={})
            for label, score in zip(outputs.label_N, outputs.score_N, strict=True)
        ]
    if len(names_C) != classes:
        message = f"the server has {len(names_C)} class names but returned {classes} classes"
        raise PipeError(message, "retry: another version may have been loaded in between")
    order_NC = np.argsort(-outputs.probabilities_NC, axis=1, kind="stable")
    return [
        _prediction(
            label, {names_C[index]: float(row_C[index]) for index in order_C}, one_label, top_k
        )
        for label, row_C, order_C in zip(
            outputs.label_N, outputs.probabilities_NC, order_NC, strict=True
        )
    ]


def _decoded(labels: Sequence[str], *, spans: bool) -> Sequence[Spans | HeadPredictions] | None:
    """Return predictions from JSON: several heads, or lists of spans; None for other texts."""
    try:
        if labels and all(label.startswith(OBJECT) for label in labels):
            return [HEADS.validate_json(label) for label in labels]
        return [Spans(spans=SPANS.validate_json(label)) for label in labels] if spans else None
    except ValidationError:
        return None


def _best(one: Spans | HeadPredictions, top_k: int | None) -> Prediction:
    """Return a prediction whose heads have the `top_k` best scores."""
    if isinstance(one, Spans):
        return one
    heads = {
        name: head if isinstance(head, Spans) else replace(head, scores=_first(head.scores, top_k))
        for name, head in one.heads.items()
    }
    return replace(one, heads=heads)


def _first(ranked: Mapping[str, float], top_k: int | None) -> dict[str, float]:
    return dict([*ranked.items()][:top_k])


def _prediction(
    label: str, ranked: Mapping[str, float], one_label: bool, top_k: int | None
) -> Prediction:
    scores = _first(ranked, top_k)
    labels, best = _split(label, ranked), max(ranked.values())
    if one_label and ranked.get(label) == best:  # different logits may have equal probabilities
        return SingleLabel(label=label, score=best, scores=scores)
    if one_label and (label in ranked or not labels):
        return AbstainedLabel(label=label or None, score=best, scores=scores)
    return MultiLabel(labels=labels, scores=scores)


def _split(joined: str, ranked: Mapping[str, float]) -> tuple[str, ...]:
    """Split labels that are joined by commas, best first; a label may contain a comma itself."""
    labels = []
    for name in ranked:
        if joined == name or joined.startswith(f"{name}, "):
            labels.append(name)
            joined = joined[len(name) :].removeprefix(", ")
    return tuple(labels)


def _marked(example: Example) -> str:
    if example.entities is None:
        return example.text
    text = example.text
    (start1, end1), (start2, end2) = example.entities
    spans = sorted([(start1, end1, "e1"), (start2, end2, "e2")], reverse=True)
    for start, end, name in spans:  # backwards, so that earlier offsets stay valid
        text = f"{text[:start]}<{name}>{text[start:end]}</{name}>{text[end:]}"
    return text
