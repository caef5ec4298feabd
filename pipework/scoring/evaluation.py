"""How good the answers are, for a checkpoint and for an engine alike.

Shapes: N inputs, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipework.data.examples import Example, Label, chunks, resolve_label
from pipework.errors import DataError
from pipework.progress import Progress
from pipework.run_folder.manifest import Metrics
from pipework.run_folder.task import Loss, Metric, Task, TaskKind, no_classifier
from pipework.scoring import metrics
from pipework.scoring.metrics import Tally
from pipework.scoring.predictions import given_labels
from pipework.text.encoding import Encoding, TextEncoder

CHUNK = 2048


class Engine(Protocol):
    """What answers: a checkpoint or an engine.

    `infer` takes N inputs and returns their logits, float32 [N, C]. The answer to an input does
    not depend on the others.
    """

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C]."""

    def close(self) -> None:
        """Free what the engine holds."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *_: object) -> None:
        """Close it."""


class ClassReport(BaseModel):
    """Precision, recall and F1 of one class; `support` counts its true rows."""

    model_config = ConfigDict(frozen=True)

    label: str
    precision: float
    recall: float
    f1: float
    support: int


class Evaluation(BaseModel):
    """Scores over a split, of which `metric` is the one that the task is judged by.

    `classes` is empty for a regression. `confusion` is [true][predicted], counts, in the order of
    the labels, for a task with a single label; else empty. `losses` are of pretraining.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    metric: Metric
    scores: dict[Metric, float]
    classes: tuple[ClassReport, ...]
    confusion: tuple[tuple[int, ...], ...]
    losses: dict[Loss, float] = {}

    def metrics(self) -> Metrics:
        """Keep what a manifest keeps."""
        return Metrics(rows=self.rows, scores=self.scores, losses=self.losses)

    @property
    def score(self) -> float:
        """The score that the task is judged by."""
        return self.scores[self.metric]


def evaluate(logits_NC: NDArray[np.float32], truth: NDArray[np.generic], task: Task) -> Evaluation:
    """Score logits against the truth, as the function `truth` gives it.

    A class that was never predicted or never true counts with F1 = 0 in the macro average, as in
    scikit-learn with zero_division=0, unless it is neither, when it is left out.
    """
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            return _single_label(logits_NC, np.asarray(truth, np.int64), task)
        case TaskKind.MULTI_LABEL:
            return _multi_label(logits_NC, np.asarray(truth, np.bool_), task)
        case TaskKind.REGRESSION:
            return _regression(logits_NC[:, 0].astype(np.float64), np.asarray(truth, float), task)
        case TaskKind.PRETRAIN:
            raise no_classifier()


def _single_label(
    logits_NC: NDArray[np.float32], truth_N: NDArray[np.int64], task: Task
) -> Evaluation:
    guess_N = given_labels(logits_NC, task).argmax(axis=1)
    confusion_CC = metrics.confusion(truth_N, guess_N, len(task.labels))
    tally = metrics.tally_confusion(confusion_CC)
    return Evaluation(
        rows=len(truth_N),
        metric=task.metric,
        scores={
            metric: metrics.confusion_score(metric, confusion_CC, task.labels)
            for metric in metrics.fitting_metrics(task.kind, task.labels)
        },
        classes=_classes(tally, task.labels),
        confusion=tuple(tuple(int(count) for count in row) for row in confusion_CC),
    )


def _multi_label(
    logits_NC: NDArray[np.float32], truth_NC: NDArray[np.bool_], task: Task
) -> Evaluation:
    given_NC = given_labels(logits_NC, task)
    tally = metrics.tally_labels(truth_NC, given_NC)
    return Evaluation(
        rows=len(truth_NC),
        metric=task.metric,
        scores={
            metric: metrics.labels_score(metric, truth_NC, given_NC)
            for metric in metrics.fitting_metrics(task.kind, task.labels)
        },
        classes=_classes(tally, task.labels),
        confusion=(),
    )


def _regression(
    found_N: NDArray[np.float64], truth_N: NDArray[np.float64], task: Task
) -> Evaluation:
    return Evaluation(
        rows=len(truth_N),
        metric=task.metric,
        scores={
            metric: metrics.values_score(metric, found_N, truth_N)
            for metric in metrics.fitting_metrics(task.kind, task.labels)
        },
        classes=(),
        confusion=(),
    )


def _classes(tally: Tally, labels: Sequence[str]) -> tuple[ClassReport, ...]:
    columns = (tally.precision, tally.recall, tally.f1, tally.true_C)
    return tuple(
        ClassReport(
            label=label,
            precision=float(precision),
            recall=float(recall),
            f1=float(f1),
            support=int(support),
        )
        for label, precision, recall, f1, support in zip(labels, *columns, strict=True)
    )


def infer_all(
    engine: Engine, encodings: Sequence[Encoding], progress: Progress
) -> NDArray[np.float32]:
    """Return logits [N, C] of any number of inputs, in chunks of bounded memory."""
    progress.begin("evaluate", len(encodings), "rows")
    parts = []
    for start in range(0, len(encodings), CHUNK):
        chunk = encodings[start : start + CHUNK]
        parts.append(engine.infer(chunk))
        progress.advance(len(chunk))
    progress.end()
    return np.concatenate(parts)


def predict_all(
    engine: Engine, encoder: TextEncoder, examples: Iterator[Example]
) -> Iterator[tuple[list[Example], NDArray[np.float32]]]:
    """Yield chunks of examples with their logits, however many there are."""
    for chunk in chunks(examples, CHUNK):
        yield chunk, engine.infer(encoder.encode(chunk))


def truth(examples: Sequence[Example], task: Task, where: str) -> NDArray[np.generic]:
    """Return what is true of labelled examples, which are of the file `where`.

    Single label: class indices, int32 [N]. Multi-label: 0 or 1 for each label, int8 [N, C].
    Regression: values, float32 [N].

    Raises:
        DataError: a row without a label, or with one that the model does not know.
    """
    if not examples:
        message = f"{where} holds no rows"
        raise DataError(message)
    index = {label: place for place, label in enumerate(task.labels)}
    rows = [(where if one.line is None else f"{where}:{one.line}", one.label) for one in examples]
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            return np.array([_place(at, label, index) for at, label in rows], np.int32)
        case TaskKind.MULTI_LABEL:
            return np.stack([_places(at, label, index) for at, label in rows])
        case TaskKind.REGRESSION:
            return np.array([_value(at, label) for at, label in rows], np.float32)
        case TaskKind.PRETRAIN:
            raise no_classifier()


def _place(at: str, label: Label | None, index: Mapping[str, int]) -> int:
    place = resolve_label(label, index) if isinstance(label, str) else None
    if place is None:
        message = f"{at} has label {label!r}, which the model lacks"
        raise DataError(message, f"known labels: {', '.join(index)}")
    return place


def _places(at: str, label: Label | None, index: Mapping[str, int]) -> NDArray[np.int8]:
    if not isinstance(label, tuple):
        message = f"{at}: expected a list of labels, found {label!r}"
        raise DataError(message, f"known labels: {', '.join(index)}")
    true_C = np.zeros(len(index), np.int8)
    true_C[[_place(at, one, index) for one in label]] = 1
    return true_C


def _value(at: str, label: Label | None) -> float:
    if not isinstance(label, str):
        message = f"{at}: expected a number to learn, found {label!r}"
        raise DataError(message)
    return float(label)
