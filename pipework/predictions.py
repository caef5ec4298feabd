"""Scores become labels here and nowhere else.

Shapes: N inputs, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.manifest import Task, TaskKind

Scores = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The label with its score, and every label's score, best first."""

    label: str
    score: float
    scores: dict[str, float]


def probabilities(logits_NC: Scores, task: Task) -> Scores:
    """Turn logits [N, C] into scores [N, C]: softmax for a single label."""
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            shifted_NC = logits_NC - logits_NC.max(axis=1, keepdims=True)
            exp_NC = np.exp(shifted_NC, dtype=np.float32)
            return np.asarray(exp_NC / exp_NC.sum(axis=1, keepdims=True), np.float32)


def decide(logits_NC: Scores, task: Task, top_k: int | None = None) -> list[Prediction]:
    """Turn logits [N, C] into N predictions; `scores` keeps the `top_k` best, or all."""
    scores_NC = probabilities(logits_NC, task)
    order_NC = np.argsort(-scores_NC, axis=1, kind="stable")[:, :top_k]
    return [
        _prediction(scores_C, order_C, task.labels)
        for scores_C, order_C in zip(scores_NC, order_NC, strict=True)
    ]


def _prediction(scores_C: Scores, order_C: NDArray[np.intp], labels: Sequence[str]) -> Prediction:
    ranked = {labels[index]: float(scores_C[index]) for index in order_C}
    label = labels[order_C[0]]
    return Prediction(label=label, score=ranked[label], scores=ranked)
