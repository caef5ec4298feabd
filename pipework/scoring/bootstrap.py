"""Confidence intervals of a score, and of the difference of two scores on the same rows.

Shapes: N rows, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.task import Task, TaskKind, not_a_classifier
from pipework.scoring import metrics
from pipework.scoring.predictions import predicted_labels

Scorer = Callable[[NDArray[np.int64]], float]
RESAMPLES = 1000
MIN_RESAMPLES = 100
MAX_WORK = 10_000_000  # limits rows x resamples
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskLogits:
    """Logits [N, C] and their task: labels, thresholds, metric."""

    logits_NC: NDArray[np.float32]
    task: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float


def paired_interval(before: TaskLogits, after: TaskLogits, truth: NDArray[np.generic]) -> Interval:
    """Return the interval of the score of `after` minus that of `before`.

    The metric is that of the task of `after`. Paired bootstrap: rows are drawn with replacement,
    and both are scored on the same draw (Efron and Tibshirani 1993, "An Introduction to the
    Bootstrap", chapter 13). The draws are the same at each call.
    """
    return paired_runs_interval([before], [after], truth)


def paired_runs_interval(
    before: Sequence[TaskLogits], after: Sequence[TaskLogits], truth: NDArray[np.generic]
) -> Interval:
    """Return the interval of the mean score of runs `after` minus that of the runs `before`.

    The runs are paired by their seeds. Each resample draws rows and pairs of runs with replacement,
    so the interval includes the variation between seeds; see `paired_interval`.
    """
    pairs = [(scorer(a, truth), scorer(b, truth)) for a, b in zip(before, after, strict=True)]
    rows, random = len(after[0].logits_NC), np.random.default_rng(SEED)
    random_pairs = np.random.default_rng((SEED, len(pairs)))
    differences = []
    for _ in range(_resamples(rows, after[0].task)):
        drawn_N = random.integers(rows, size=rows)
        gains = np.array(
            [score_after(drawn_N) - score_before(drawn_N) for score_before, score_after in pairs]
        )
        differences.append(gains[random_pairs.integers(len(pairs), size=len(pairs))].mean())
    low, high = np.percentile(differences, (2.5, 97.5))
    return Interval(low=float(low), high=float(high))


def score_interval(outputs: TaskLogits, truth: NDArray[np.generic]) -> Interval:
    """Return the interval of the score by the metric of the task, as in `paired_interval`."""
    score, rows = scorer(outputs, truth), len(outputs.logits_NC)
    random = np.random.default_rng(SEED)
    draws = (random.integers(rows, size=rows) for _ in range(_resamples(rows, outputs.task)))
    low, high = np.percentile([score(drawn_N) for drawn_N in draws], (2.5, 97.5))
    return Interval(low=float(low), high=float(high))


def _resamples(rows: int, task: Task) -> int:
    """Return the number of draws: fewer if computing a score takes longer."""
    multi_label = task.kind is TaskKind.MULTI_LABEL
    work = rows * (len(task.labels) if multi_label else 1) + len(task.labels) ** 2
    return int(np.clip(MAX_WORK // work, MIN_RESAMPLES, RESAMPLES))


def scorer(outputs: TaskLogits, truth: NDArray[np.generic]) -> Scorer:
    """Return a function that scores rows as `evaluate` does, given their indices.

    Indices may repeat. Labels are predicted only once.
    """
    task, logits_NC = outputs.task, outputs.logits_NC
    match task.kind:
        case TaskKind.SINGLE_LABEL:
            true_N, predicted_N = np.asarray(truth, np.int64), logits_NC.argmax(axis=1)
            return lambda rows: metrics.single_label_score(
                task.metric,
                metrics.confusion(true_N[rows], predicted_N[rows], len(task.labels)),
                task,
            )
        case TaskKind.MULTI_LABEL:
            true_NC, predicted_NC = np.asarray(truth, np.bool_), predicted_labels(logits_NC, task)
            return lambda rows: metrics.multi_label_score(
                task.metric, true_NC[rows], predicted_NC[rows]
            )
        case TaskKind.REGRESSION:
            target_N, value_N = np.asarray(truth, np.float64), logits_NC[:, 0].astype(np.float64)
            return lambda rows: metrics.regression_score(task.metric, value_N[rows], target_N[rows])
        case TaskKind.PRETRAIN:
            raise not_a_classifier()
