"""How sure the difference of two scores on the same rows is.

Shapes: N rows, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.task import Task, TaskKind, no_classifier
from pipework.scoring import metrics
from pipework.scoring.predictions import given_labels

Scorer = Callable[[NDArray[np.int64]], float]
RESAMPLES = 1000
FEWEST_RESAMPLES = 100
WORK = 10_000_000
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """Logits [N, C] and the task that says what they mean: labels, thresholds, metric."""

    logits_NC: NDArray[np.float32]
    task: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Bounds of a difference, with 95 % confidence."""

    low: float
    high: float


def paired_interval(before: Answers, after: Answers, truth: NDArray[np.generic]) -> Interval:
    """Bound how much `after` scores above `before`, by the metric of the task of `after`.

    A paired bootstrap: rows are drawn with replacement, and both are scored on the same draw
    (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13). The draws are the
    same at each call.
    """
    theirs, ours = scorer(before, truth), scorer(after, truth)
    rows, chance = len(after.logits_NC), np.random.default_rng(SEED)
    draws = (chance.integers(rows, size=rows) for _ in range(_resamples(rows, after.task)))
    differences = [ours(drawn_N) - theirs(drawn_N) for drawn_N in draws]
    low, high = np.percentile(differences, (2.5, 97.5))
    return Interval(low=float(low), high=float(high))


def _resamples(rows: int, task: Task) -> int:
    """Return how often to draw: less often where one score takes longer."""
    several = task.kind is TaskKind.MULTI_LABEL
    work = rows * (len(task.labels) if several else 1) + len(task.labels) ** 2
    return int(np.clip(WORK // work, FEWEST_RESAMPLES, RESAMPLES))


def scorer(answers: Answers, truth: NDArray[np.generic]) -> Scorer:
    """Return what scores any rows as `evaluate` would; answers are decided only once.

    It takes indices of rows, which may repeat.
    """
    task, logits_NC = answers.task, answers.logits_NC
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            true_N, guess_N = np.asarray(truth, np.int64), logits_NC.argmax(axis=1)
            return lambda rows: metrics.confusion_score(
                task.metric,
                metrics.confusion(true_N[rows], guess_N[rows], len(task.labels)),
                task.labels,
            )
        case TaskKind.MULTI_LABEL:
            true_NC, given_NC = np.asarray(truth, np.bool_), given_labels(logits_NC, task)
            return lambda rows: metrics.labels_score(task.metric, true_NC[rows], given_NC[rows])
        case TaskKind.REGRESSION:
            values_N, found_N = np.asarray(truth, np.float64), logits_NC[:, 0].astype(np.float64)
            return lambda rows: metrics.values_score(task.metric, found_N[rows], values_N[rows])
        case TaskKind.PRETRAIN:
            raise no_classifier()
