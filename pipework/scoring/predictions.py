"""Convert logits to scores, labels and predictions, for training and serving alike.

Shapes: N inputs, C classes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from pipework.run_folder.task import Task, TaskKind, not_a_classifier

Scores = NDArray[np.float32]
THRESHOLD = 0.5
Truncated = Annotated[
    bool, Field(description="whether only a part of the text was read, because it is too long")
]
MIN_GAP = 1e-4  # between the scores on both sides of a threshold
MIN_RELATIVE_UNIT, MIN_UNIT = 0.03, 1e-9  # see difference_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class SingleLabel:
    """The best label with its score, and the scores of all labels, best first."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    label: str
    score: float
    scores: dict[str, float]
    truncated: Truncated = False

    def text_fields(self) -> tuple[str, ...]:
        """Return label and score."""
        return self.label, f"{self.score:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabel:
    """The labels whose scores reach their thresholds, and the scores of all labels, best first."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    labels: tuple[str, ...]
    scores: dict[str, float]
    truncated: Truncated = False

    def text_fields(self) -> tuple[str, ...]:
        """Return the labels and their scores."""
        scores = (f"{self.scores[label]:.4f}" for label in self.labels if label in self.scores)
        return ", ".join(self.labels), ", ".join(scores)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressionValue:
    """The predicted number of a regression."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    score: float
    truncated: Truncated = False

    def text_fields(self) -> tuple[str, ...]:
        """Return the number."""
        return (f"{self.score:.4f}",)


Prediction = SingleLabel | MultiLabel | RegressionValue


def probabilities(logits_NC: Scores, task: Task) -> Scores:
    """Convert logits [N, C] to scores [N, C].

    Single-label: softmax. Multi-label: sigmoid. Regression: unchanged.
    """
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            # For a single text, ndarray.max and .sum take 1.5 times as long.
            shifted_NC = logits_NC - np.maximum.reduce(logits_NC, axis=1, keepdims=True)
            exp_NC = np.exp(shifted_NC, dtype=np.float32)
            sum_N1 = np.add.reduce(exp_NC, axis=1, keepdims=True)
            return np.asarray(exp_NC / sum_N1, np.float32)
        case TaskKind.MULTI_LABEL:
            return _sigmoid(logits_NC)
        case TaskKind.REGRESSION:
            return np.asarray(logits_NC, np.float32)
        case TaskKind.PRETRAIN:
            raise not_a_classifier()


def _sigmoid(logits_NC: Scores) -> Scores:
    exp_NC = np.exp(-np.abs(logits_NC), dtype=np.float32)  # of non-positive numbers: no overflow
    positive_NC = logits_NC >= 0
    return np.asarray(np.where(positive_NC, 1, exp_NC) / (1 + exp_NC), np.float32)


def predicted_labels(logits_NC: Scores, task: Task) -> NDArray[np.bool_]:
    """Return the predicted labels, [N, C]: the best label, or all that reach their thresholds.

    A regression has none.
    """
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            best_N = logits_NC.argmax(axis=1)
            return np.asarray(np.arange(logits_NC.shape[1]) == best_N[:, None])
        case TaskKind.MULTI_LABEL:
            return _reached(probabilities(logits_NC, task), task)
        case TaskKind.REGRESSION:
            return np.zeros(logits_NC.shape, bool)
        case TaskKind.PRETRAIN:
            raise not_a_classifier()


def _reached(scores_NC: Scores, task: Task) -> NDArray[np.bool_]:
    thresholds_C = np.array(task.thresholds or [THRESHOLD] * len(task.labels), np.float64)
    # A threshold between two adjacent float32 numbers would be rounded to one of them.
    return np.asarray(scores_NC.astype(np.float64) >= thresholds_C)


def decide(logits_NC: Scores, task: Task, top_k: int | None = None) -> list[Prediction]:
    """Convert logits [N, C] to N predictions; `scores` holds the `top_k` best, or all."""
    scores_NC = probabilities(logits_NC, task)
    if task.kind is TaskKind.REGRESSION:
        return [RegressionValue(score=float(score)) for score in scores_NC[:, 0]]
    order_NC = (-scores_NC).argsort(axis=1, kind="stable")
    ranked = [
        {task.labels[index]: scores_C[index] for index in order_K}
        for scores_C, order_K in zip(scores_NC.tolist(), order_NC[:, :top_k].tolist(), strict=True)
    ]
    if task.kind is TaskKind.SINGLE_LABEL:
        return [_single_label(scores) for scores in ranked]
    return [
        MultiLabel(
            labels=tuple(task.labels[index] for index in order_C if reached_C[index]),
            scores=scores,
        )
        for order_C, reached_C, scores in zip(
            order_NC.tolist(), _reached(scores_NC, task).tolist(), ranked, strict=True
        )
    ]


def mark_truncated(predictions: list[Prediction], rows: Iterable[int]) -> list[Prediction]:
    """Set `truncated` of the predictions of these rows, and return all predictions."""
    for row in rows:
        predictions[row] = replace(predictions[row], truncated=True)
    return predictions


def _single_label(ranked: dict[str, float]) -> SingleLabel:
    label = next(iter(ranked))
    return SingleLabel(label=label, score=ranked[label], scores=ranked)


def difference_unit(logits_NC: Scores, task: Task) -> float:
    """Return the unit in which differences of logits are compared with a limit.

    It is 1 for labels, because softmax and sigmoid fix the scale of a logit; but logits that are
    usually above 33 have larger rounding errors, and a larger unit. The values of a regression have
    any scale: the unit is their standard deviation.
    """
    if task.kind is not TaskKind.REGRESSION:
        finite_NC = np.where(np.isfinite(logits_NC), logits_NC, 0)
        usual = float(np.median(np.abs(finite_NC).max(axis=1)))
        return max(1.0, MIN_RELATIVE_UNIT * usual)
    values_N = logits_NC[:, 0].astype(np.float64)
    # If a model predicts nearly the same value for all inputs, rounding errors still remain.
    return float(max(values_N.std(), MIN_RELATIVE_UNIT * np.abs(values_N).max(), MIN_UNIT))


def choose_thresholds(logits_NC: Scores, truth_NC: NDArray[np.generic]) -> tuple[float, ...]:
    """Return the threshold of each label that maximises its F1 on labelled rows.

    A threshold is the midpoint of two adjacent scores, or of the lowest score and 0, that differ by
    at least `MIN_GAP`: rounding errors of an engine must not change the prediction of a row. If no
    scores do, any two different scores will do. Of several with the same F1 the highest is chosen;
    a label without rows gets 0.5.

    Args:
        logits_NC: float32 [N, C] of a multi-label task.
        truth_NC: 0 or 1, [N, C].
    """
    scores_NC = _sigmoid(logits_NC).astype(np.float64)
    truth = np.asarray(truth_NC, np.int64)
    return tuple(
        _threshold(scores_NC[:, label], truth[:, label]) for label in range(truth.shape[1])
    )


def _threshold(scores_N: NDArray[np.float64], truth_N: NDArray[np.int64]) -> float:
    if not truth_N.any():
        return THRESHOLD
    order_N = np.argsort(-scores_N, kind="stable")
    ranked_N, hits_N = scores_N[order_N], np.cumsum(truth_N[order_N])
    below_N = np.append(ranked_N[1:], 0)
    f1_N = 2 * hits_N / (np.arange(1, len(ranked_N) + 1) + truth_N.sum())
    gap_N = ranked_N - below_N
    apart_N = gap_N >= MIN_GAP
    f1_N[~apart_N if apart_N.any() else gap_N == 0] = -1
    best = int(f1_N.argmax())
    return float((ranked_N[best] + below_N[best]) / 2)
