"""Scores become labels here and nowhere else.

Shapes: N inputs, C classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from pipework.run_folder.task import Task, TaskKind, no_classifier

Scores = NDArray[np.float32]
THRESHOLD = 0.5
FLAT, TINY = 0.03, 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class OneLabel:
    """The label with its score, and every label's score, best first."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    label: str
    score: float
    scores: dict[str, float]

    def words(self) -> tuple[str, ...]:
        """Return label and score."""
        return self.label, f"{self.score:.4f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeveralLabels:
    """The labels whose scores reach their thresholds, and every label's score; best first."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    labels: tuple[str, ...]
    scores: dict[str, float]

    def words(self) -> tuple[str, ...]:
        """Return the labels, and their scores."""
        scores = (f"{self.scores[label]:.4f}" for label in self.labels if label in self.scores)
        return ", ".join(self.labels), ", ".join(scores)


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """The number that a regression gives."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    score: float

    def words(self) -> tuple[str, ...]:
        """Return the number."""
        return (f"{self.score:.4f}",)


Prediction = OneLabel | SeveralLabels | Value


def probabilities(logits_NC: Scores, task: Task) -> Scores:
    """Turn logits [N, C] into scores [N, C].

    A single label: softmax. Several: a sigmoid for each. A regression: the value itself.
    """
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            # Of one text, ndarray.max and .sum take half as long again for their defaults.
            shifted_NC = logits_NC - np.maximum.reduce(logits_NC, axis=1, keepdims=True)
            exp_NC = np.exp(shifted_NC, dtype=np.float32)
            sum_N1 = np.add.reduce(exp_NC, axis=1, keepdims=True)
            return np.asarray(exp_NC / sum_N1, np.float32)
        case TaskKind.MULTI_LABEL:
            return _sigmoid(logits_NC)
        case TaskKind.REGRESSION:
            return np.asarray(logits_NC, np.float32)
        case TaskKind.PRETRAIN:
            raise no_classifier()


def _sigmoid(logits_NC: Scores) -> Scores:
    exp_NC = np.exp(-np.abs(logits_NC), dtype=np.float32)  # of what is not above 0: no overflow
    above_NC = logits_NC >= 0
    return np.asarray(np.where(above_NC, 1, exp_NC) / (1 + exp_NC), np.float32)


def given_labels(logits_NC: Scores, task: Task) -> NDArray[np.bool_]:
    """Return which labels each input is given, [N, C]: the best, or those above their thresholds.

    A regression gives none.
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
            raise no_classifier()


def _reached(scores_NC: Scores, task: Task) -> NDArray[np.bool_]:
    thresholds_C = np.array(task.thresholds or [THRESHOLD] * len(task.labels), np.float64)
    # In float64: a threshold between two neighbours in float32 would else become one of them.
    return np.asarray(scores_NC.astype(np.float64) >= thresholds_C)


def decide(logits_NC: Scores, task: Task, top_k: int | None = None) -> list[Prediction]:
    """Turn logits [N, C] into N predictions; `scores` keeps the `top_k` best, or all."""
    scores_NC = probabilities(logits_NC, task)
    if task.kind is TaskKind.REGRESSION:
        return [Value(score=float(score)) for score in scores_NC[:, 0]]
    order_NC = (-scores_NC).argsort(axis=1, kind="stable")
    ranked = [
        {task.labels[index]: scores_C[index] for index in order_K}
        for scores_C, order_K in zip(scores_NC.tolist(), order_NC[:, :top_k].tolist(), strict=True)
    ]
    if task.kind is TaskKind.SINGLE_LABEL:
        return [_one(one) for one in ranked]
    return [
        SeveralLabels(
            labels=tuple(task.labels[index] for index in order_C if reached_C[index]), scores=one
        )
        for order_C, reached_C, one in zip(
            order_NC.tolist(), _reached(scores_NC, task).tolist(), ranked, strict=True
        )
    ]


def _one(ranked: dict[str, float]) -> OneLabel:
    label = next(iter(ranked))
    return OneLabel(label=label, score=ranked[label], scores=ranked)


def unit_of(logits_NC: Scores, task: Task) -> float:
    """Return what a difference of logits is measured in, where it is compared with a limit.

    That is 1 for labels, since softmax and sigmoid give a logit its size. The values of a
    regression may be of any size: it is their standard deviation.
    """
    if task.kind is not TaskKind.REGRESSION:
        return 1.0
    values_N = logits_NC[:, 0].astype(np.float64)
    # A model that says nearly the same of everything still has the steps of its arithmetic.
    return float(max(values_N.std(), FLAT * np.abs(values_N).max(), TINY))


def choose_thresholds(logits_NC: Scores, truth_NC: NDArray[np.generic]) -> tuple[float, ...]:
    """Return for each label the threshold with the highest F1 on labelled rows.

    A threshold lies in the middle between two scores (below the lowest one: between it and 0). Of
    several with the same F1 the highest is taken; a label that no row has gets 0.5.

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
    f1_N[ranked_N == below_N] = -1  # rows with one score are given the label together
    best = int(f1_N.argmax())
    return float((ranked_N[best] + below_N[best]) / 2)
