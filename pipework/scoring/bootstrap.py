"""Confidence intervals of a score, and of the difference of two scores on the same rows.

Shapes: N inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.scoring.abstention import CONFIDENCE, fewest_rows
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Scorer, Task

ONE_SIDED = 2 * CONFIDENCE - 1  # of an interval whose lower bound has the confidence alone
RESAMPLES = 1000
MIN_RESAMPLES = 100
MAX_WORK = 10_000_000  # limits rows x resamples
SEED = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskOutputs:
    """Outputs and their task: labels, thresholds, metric."""

    outputs: Outputs
    task: Task

    def scorer(self, truth: NDArray[np.generic]) -> Scorer:
        """Return a function that scores inputs, given their indices; see `Task.scorer`."""
        return self.task.scorer(self.outputs, truth)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


def paired_interval(
    before: TaskOutputs,
    after: TaskOutputs,
    truth: NDArray[np.generic],
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the interval of the score of `after` minus the score of `before`.

    The task of `after` has the metric. Paired bootstrap: rows are drawn with replacement,
    and both are scored on the same draw (Efron and Tibshirani 1993, "An Introduction to the
    Bootstrap", chapter 13). The draws are the same at each call.
    """
    return paired_runs_interval([before], [after], truth, confidence)


def paired_runs_interval(
    before: Sequence[TaskOutputs],
    after: Sequence[TaskOutputs],
    truth: NDArray[np.generic],
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the interval of the mean score of runs `after` minus the mean score of runs `before`.

    The runs are paired by their seeds. Each resample draws rows and pairs of runs with replacement,
    so the interval includes the variation between seeds; see `paired_interval`.
    """
    pairs = [(a.scorer(truth), b.scorer(truth)) for a, b in zip(before, after, strict=True)]
    rows, random = len(after[0].outputs), np.random.default_rng(SEED)
    random_pairs = np.random.default_rng((SEED, len(pairs)))
    differences = []
    for _ in range(_resamples(rows, after[0].task)):
        drawn_N = random.integers(rows, size=rows)
        gains = np.array(
            [score_after(drawn_N) - score_before(drawn_N) for score_before, score_after in pairs]
        )
        differences.append(gains[random_pairs.integers(len(pairs), size=len(pairs))].mean())
    return _interval(differences, confidence)


def lower_bound(before: TaskOutputs, after: TaskOutputs, truth: NDArray[np.generic]) -> float:
    """Return the lower bound (95 %) of the score of `after` minus the score of `before`.

    It is that of the paired bootstrap minus one row, because the draws of a few rows that differ
    vary too little. See `shows_margin`.
    """
    low = paired_interval(before, after, truth, ONE_SIDED).low
    return low - 1 / max(1, len(after.outputs))


def shows_margin(low: float, rows: int, margin: float) -> bool:
    """Return whether a lower bound shows that a score falls by at most a margin, 0 to 1.

    Rows that do not differ show it only if there are enough of them: about 3 divided by the margin.
    """
    return low > -margin and (not margin or rows >= fewest_rows(margin))


def score_interval(scored: TaskOutputs, truth: NDArray[np.generic]) -> Interval:
    """Return the 95 % interval of the score by the metric of the task."""
    score = scored.scorer(truth)
    rows = len(scored.outputs)
    random = np.random.default_rng(SEED)
    draws = (random.integers(rows, size=rows) for _ in range(_resamples(rows, scored.task)))
    return _interval([score(drawn_N) for drawn_N in draws], CONFIDENCE)


def _interval(values: Sequence[float], confidence: float) -> Interval:
    low, high = np.quantile(values, (0.5 - confidence / 2, 0.5 + confidence / 2))
    return Interval(low=float(low), high=float(high))


def _resamples(rows: int, task: Task) -> int:
    """Return the number of draws: fewer if computing a score takes longer."""
    decisions = len(task.labels) if task.many_labels else 1
    work = rows * decisions + len(task.labels) ** 2
    return int(np.clip(MAX_WORK // work, MIN_RESAMPLES, RESAMPLES))
