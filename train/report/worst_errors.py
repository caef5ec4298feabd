"""The most confident wrong predictions: errors of the model, or of the labels.

Shapes: N rows, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.run_folder.task import Task, TaskKind
from pipework.scoring.predictions import predicted_labels, probabilities

MAX_ERRORS = 25
NONE = "(none)"


@dataclass(frozen=True, kw_only=True)
class WrongPrediction:
    """A row with a wrong prediction.

    Attributes:
        example: the row.
        true: its label, labels or value, as text.
        predicted: the predicted label, labels or value, as text.
        score: the probability of the wrong decision; for a regression the predicted value minus
            the true value.
    """

    example: Example
    true: str
    predicted: str
    score: float


def worst_errors(
    examples: Sequence[Example],
    logits_NC: NDArray[np.float32],
    truth: NDArray[np.generic],
    task: Task,
) -> list[WrongPrediction]:
    """Return at most MAX_ERRORS errors, the most confident (for a regression, the largest) first.

    Args:
        examples: the N rows.
        logits_NC: the model's logits.
        truth: as `pipework.scoring.evaluation.label_array` gives it.
        task: kind, labels and thresholds.
    """
    if task.kind is TaskKind.REGRESSION:
        return _largest_errors(
            examples, logits_NC[:, 0].astype(np.float64), np.asarray(truth, np.float64)
        )
    predicted_NC, scores_NC = predicted_labels(logits_NC, task), probabilities(logits_NC, task)
    if task.kind is TaskKind.SINGLE_LABEL:
        true_NC = np.arange(len(task.labels)) == np.asarray(truth)[:, None]
        confidence_N = np.where(predicted_NC & ~true_NC, scores_NC, -1).max(axis=1)
    else:
        true_NC = np.asarray(truth, np.bool_)
        confidence_NC = np.where(predicted_NC, scores_NC, 1 - scores_NC)
        confidence_N = np.where(predicted_NC != true_NC, confidence_NC, -1).max(axis=1)
    wrong = [
        row
        for row in np.argsort(-confidence_N, kind="stable")[:MAX_ERRORS]
        if confidence_N[row] >= 0
    ]
    return [
        WrongPrediction(
            example=examples[row],
            true=_label_names(true_NC[row], task.labels),
            predicted=_label_names(predicted_NC[row], task.labels),
            score=float(confidence_N[row]),
        )
        for row in wrong
    ]


def _largest_errors(
    examples: Sequence[Example], predicted_N: NDArray[np.float64], truth_N: NDArray[np.float64]
) -> list[WrongPrediction]:
    error_N = predicted_N - truth_N
    return [
        WrongPrediction(
            example=examples[row],
            true=f"{truth_N[row]:.4g}",
            predicted=f"{predicted_N[row]:.4g}",
            score=float(error_N[row]),
        )
        for row in np.argsort(-np.abs(error_N), kind="stable")[:MAX_ERRORS]
        if error_N[row]
    ]


def _label_names(flags_C: NDArray[np.bool_], labels: Sequence[str]) -> str:
    names = (label for label, flag in zip(labels, flags_C, strict=True) if flag)
    return ", ".join(names) or NONE
