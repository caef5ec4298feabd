"""The rows where the model is surest and wrong: mistakes of the model, or of the labels.

Shapes: N rows, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.run_folder.task import Task, TaskKind
from pipework.scoring.predictions import given_labels, probabilities

MOST = 25
NONE = "(none)"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One row that was answered wrongly.

    Attributes:
        example: the row.
        true: its label, labels or value, in words.
        predicted: what the model says.
        score: the probability that the model gives to what is wrong; of a regression the
            predicted value less the true one.
    """

    example: Example
    true: str
    predicted: str
    score: float


def mistakes(
    examples: Sequence[Example],
    logits_NC: NDArray[np.float32],
    truth: NDArray[np.generic],
    task: Task,
) -> list[Mistake]:
    """Return at most MOST mistakes, the most confident first, or of a regression the largest.

    Args:
        examples: the N rows.
        logits_NC: the model's answers.
        truth: as `pipework.scoring.evaluation.truth` gives it.
        task: how logits become answers.
    """
    if task.kind is TaskKind.REGRESSION:
        return _misses(examples, logits_NC[:, 0].astype(np.float64), np.asarray(truth, np.float64))
    given_NC, scores_NC = given_labels(logits_NC, task), probabilities(logits_NC, task)
    if task.kind is TaskKind.SINGLE_LABEL:
        true_NC = np.arange(len(task.labels)) == np.asarray(truth)[:, None]
        sure_N = np.where(given_NC & ~true_NC, scores_NC, -1).max(axis=1)
    else:
        true_NC = np.asarray(truth, np.bool_)
        sure_NC = np.where(given_NC, scores_NC, 1 - scores_NC)
        sure_N = np.where(given_NC != true_NC, sure_NC, -1).max(axis=1)
    wrong = [row for row in np.argsort(-sure_N, kind="stable")[:MOST] if sure_N[row] >= 0]
    return [
        Mistake(
            example=examples[row],
            true=_named(true_NC[row], task.labels),
            predicted=_named(given_NC[row], task.labels),
            score=float(sure_N[row]),
        )
        for row in wrong
    ]


def _misses(
    examples: Sequence[Example], found_N: NDArray[np.float64], truth_N: NDArray[np.float64]
) -> list[Mistake]:
    off_N = found_N - truth_N
    return [
        Mistake(
            example=examples[row],
            true=f"{truth_N[row]:.4g}",
            predicted=f"{found_N[row]:.4g}",
            score=float(off_N[row]),
        )
        for row in np.argsort(-np.abs(off_N), kind="stable")[:MOST]
        if off_N[row]
    ]


def _named(given_C: NDArray[np.bool_], labels: Sequence[str]) -> str:
    named = (label for label, given in zip(labels, given_C, strict=True) if given)
    return ", ".join(named) or NONE
