"""Evaluate the predictions of a checkpoint or an engine on labelled examples.

Shapes: N inputs, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipework.data.examples import Example, Label
from pipework.errors import DataError
from pipework.progress import Progress
from pipework.run_folder.task import (
    Loss,
    Metric,
    SplitMetrics,
    Task,
    TaskKind,
    not_a_classifier,
    resolve_label,
)
from pipework.scoring import metrics
from pipework.scoring.metrics import Tally
from pipework.scoring.predictions import predicted_labels
from pipework.text.encoding import Encoding

CHUNK = 2048


class Engine(Protocol):
    """A model that computes logits: a checkpoint or an exported engine."""

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits, float32 [N, C]; those of an input do not depend on other inputs."""

    def close(self) -> None:
        """Release the resources of the engine."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ClassReport(BaseModel):
    """Precision, recall and F1 of a class; `support` is the number of rows with this label."""

    model_config = ConfigDict(frozen=True)

    label: str
    precision: float
    recall: float
    f1: float
    support: int


class LeakedRows(BaseModel):
    """The rows whose text is also in train: their number, and the scores by the task's metric.

    `score` is that of the leaked rows, `others` that of all other rows; None without such rows.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    score: float
    others: float | None


class Evaluation(BaseModel):
    """Scores over a split; `metric` is the task's metric.

    `classes` is empty for a regression. `confusion` holds the counts [true][predicted] in label
    order for a single-label task, else it is empty. `losses` are set for pretraining. `leaked` is
    None if no row is known to be in train, too.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    metric: Metric
    scores: dict[Metric, float]
    classes: tuple[ClassReport, ...]
    confusion: tuple[tuple[int, ...], ...]
    losses: dict[Loss, float] = {}
    leaked: LeakedRows | None = None

    def metrics(self) -> SplitMetrics:
        """Return the part of the evaluation that a manifest stores."""
        return SplitMetrics(rows=self.rows, scores=self.scores, losses=self.losses)

    @property
    def score(self) -> float:
        """The score by the task's metric."""
        return self.scores[self.metric]


def evaluate(logits_NC: NDArray[np.float32], truth: NDArray[np.generic], task: Task) -> Evaluation:
    """Score logits against labels as returned by `label_array`.

    In the macro average, a class without correct predictions counts with F1 = 0, as in
    scikit-learn with zero_division=0. Classes without true and predicted rows are left out.
    """
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            return _single_label(logits_NC, np.asarray(truth, np.int64), task)
        case TaskKind.MULTI_LABEL:
            return _multi_label(logits_NC, np.asarray(truth, np.bool_), task)
        case TaskKind.REGRESSION:
            return _regression(logits_NC[:, 0].astype(np.float64), np.asarray(truth, float), task)
        case TaskKind.PRETRAIN:
            raise not_a_classifier()


def evaluate_leaks(
    logits_NC: NDArray[np.float32],
    truth: NDArray[np.generic],
    task: Task,
    leaked_N: NDArray[np.bool_],
) -> LeakedRows | None:
    """Score the leaked rows and the others, each alone; None if there are no leaked rows."""
    leaked, others = (
        evaluate(logits_NC[rows_N], truth[rows_N], task).score if rows_N.any() else None
        for rows_N in (leaked_N, ~leaked_N)
    )
    if leaked is None:
        return None
    return LeakedRows(rows=int(leaked_N.sum()), score=leaked, others=others)


def _single_label(
    logits_NC: NDArray[np.float32], truth_N: NDArray[np.int64], task: Task
) -> Evaluation:
    predicted_N = predicted_labels(logits_NC, task).argmax(axis=1)
    confusion_CC = metrics.confusion(truth_N, predicted_N, len(task.labels))
    tally = metrics.tally_confusion(confusion_CC)
    return Evaluation(
        rows=len(truth_N),
        metric=task.metric,
        scores={
            metric: metrics.single_label_score(metric, confusion_CC, task)
            for metric in metrics.applicable_metrics(task.kind, task.labels)
        },
        classes=_classes(tally, task.labels),
        confusion=tuple(tuple(int(count) for count in row) for row in confusion_CC),
    )


def _multi_label(
    logits_NC: NDArray[np.float32], truth_NC: NDArray[np.bool_], task: Task
) -> Evaluation:
    predicted_NC = predicted_labels(logits_NC, task)
    tally = metrics.tally_labels(truth_NC, predicted_NC)
    return Evaluation(
        rows=len(truth_NC),
        metric=task.metric,
        scores={
            metric: metrics.multi_label_score(metric, truth_NC, predicted_NC)
            for metric in metrics.applicable_metrics(task.kind, task.labels)
        },
        classes=_classes(tally, task.labels),
        confusion=(),
    )


def _regression(
    value_N: NDArray[np.float64], truth_N: NDArray[np.float64], task: Task
) -> Evaluation:
    return Evaluation(
        rows=len(truth_N),
        metric=task.metric,
        scores={
            metric: metrics.regression_score(metric, value_N, truth_N)
            for metric in metrics.applicable_metrics(task.kind, task.labels)
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
    """Return logits [N, C] of any number of inputs, computed in chunks to bound memory."""
    with progress.stage("evaluate", len(encodings), "rows"):
        parts = []
        for start in range(0, len(encodings) or 1, CHUNK):  # an empty chunk gives [0, C]
            chunk = encodings[start : start + CHUNK]
            parts.append(engine.infer(chunk))
            progress.advance(len(chunk))
    return np.concatenate(parts)


def label_array(examples: Sequence[Example], task: Task, where: str) -> NDArray[np.generic]:
    """Return the labels of examples as an array; `where` is their file, for errors.

    Single-label: class indices, int32 [N]. Multi-label: 0 or 1 for each label, int8 [N, C].
    Regression: targets, float32 [N].

    Raises:
        DataError: a row has no label, or a label that the model does not have.
    """
    if not examples:
        message = f"{where} holds no rows"
        raise DataError(message)
    if task.kind is not TaskKind.PRETRAIN and all(row.label is None for row in examples):
        message = f"{where} has no labels"
        raise DataError(message, "use a file with labels: pipe eval RUN FILE")
    index = {label: position for position, label in enumerate(task.labels)}
    rows = [
        (where if example.line is None else f"{where}:{example.line}", example.label)
        for example in examples
    ]
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            return np.array([_class_index(at, label, index) for at, label in rows], np.int32)
        case TaskKind.MULTI_LABEL:
            return np.stack([_label_flags(at, label, index) for at, label in rows])
        case TaskKind.REGRESSION:
            return np.array([_target(at, label) for at, label in rows], np.float32)
        case TaskKind.PRETRAIN:
            raise not_a_classifier()


def _class_index(at: str, label: Label | None, index: Mapping[str, int]) -> int:
    position = resolve_label(label, index) if isinstance(label, str) else None
    if position is None:
        message = f"{at} has label {label!r}, which the model lacks"
        raise DataError(message, f"known labels: {', '.join(index)}")
    return position


def _label_flags(at: str, label: Label | None, index: Mapping[str, int]) -> NDArray[np.int8]:
    if not isinstance(label, tuple):
        message = f"{at}: expected a list of labels, found {label!r}"
        raise DataError(message, f"known labels: {', '.join(index)}")
    true_C = np.zeros(len(index), np.int8)
    true_C[[_class_index(at, item, index) for item in label]] = 1
    return true_C


def _target(at: str, label: Label | None) -> float:
    if not isinstance(label, str):
        message = f"{at}: expected a number as label, found {label!r}"
        raise DataError(message)
    return float(label)
