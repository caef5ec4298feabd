"""Whether the model beats the linear one, and how sure that is.

Shapes: N rows of dev, C labels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pipework import metrics
from pipework.evaluation import evaluate
from pipework.predictions import given_labels
from pipework.task import Metric, Task, TaskKind
from train.baseline import Baseline

Scorer = Callable[[NDArray[np.int64]], float]
RESAMPLES = 1000
FEWEST_RESAMPLES = 100
WORK = 10_000_000
SEED = 0
PERSONS = (Metric.MATTHEWS, Metric.PEARSON, Metric.SPEARMAN)


class Outcome(StrEnum):
    """What can be said of a difference whose interval lies above 0, around it, or below."""

    BETTER = "better"
    UNDECIDED = "undecided"
    WORSE = "worse"


LINEAR = "a linear model trained on the same rows"
SAYS = {
    Outcome.BETTER: f"The model beats {LINEAR}",
    Outcome.UNDECIDED: f"The model does not beat {LINEAR} by more than chance explains",
    Outcome.WORSE: f"The model does not beat {LINEAR}: it is worse",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The model against the baseline: scores on dev, and their difference.

    `low` and `high` bound the difference with 95 % confidence.
    """

    metric: Metric
    model: float
    baseline: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        """What the interval allows to say."""
        if self.low > 0:
            return Outcome.BETTER
        return Outcome.WORSE if self.high < 0 else Outcome.UNDECIDED

    @property
    def sentence(self) -> str:
        """The verdict in one plain sentence."""
        says = SAYS[self.outcome]
        difference = f"{self.model - self.baseline:+.4f}"
        return (
            f"{says}: {in_words(self.metric)} {self.model:.4f} against {self.baseline:.4f}, "
            f"difference {difference} (95 % interval {self.low:+.4f} to {self.high:+.4f})."
        )


def verdict(
    logits_NC: NDArray[np.float32], truth: NDArray[np.generic], task: Task, baseline: Baseline
) -> Verdict:
    """Compare the model's logits on dev with the baseline's answers to the same rows.

    The interval is a paired bootstrap: rows are drawn with replacement, and both are scored on
    the same draw (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13).
    """
    ours = _scorer(logits_NC, truth, task)
    theirs = _scorer(baseline.logits_NC, truth, baseline.task)
    rows, chance = len(logits_NC), np.random.default_rng(SEED)
    draws = (chance.integers(rows, size=rows) for _ in range(_resamples(rows, task)))
    differences = [ours(drawn_N) - theirs(drawn_N) for drawn_N in draws]
    low, high = np.percentile(differences, (2.5, 97.5))
    return Verdict(
        metric=task.metric,
        model=evaluate(logits_NC, truth, task).score,
        baseline=baseline.evaluation.score,
        low=float(low),
        high=float(high),
    )


def _resamples(rows: int, task: Task) -> int:
    """Return how often to draw: less often where one score takes longer."""
    several = task.kind is TaskKind.MULTI_LABEL
    work = rows * (len(task.labels) if several else 1) + len(task.labels) ** 2
    return int(np.clip(WORK // work, FEWEST_RESAMPLES, RESAMPLES))


def _scorer(logits_NC: NDArray[np.float32], truth: NDArray[np.generic], task: Task) -> Scorer:
    """Return what scores any rows of dev, as `evaluate` would; answers are decided only once."""
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


def in_words(metric: Metric) -> str:
    """Return the name of a score as a person writes it: macro-F1, Pearson."""
    if metric in PERSONS:
        return metric.capitalize()
    return metric.replace("_", "-").replace("f1", "F1")
