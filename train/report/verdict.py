"""The difference between the scores of the model and of the linear baseline, with its interval.

Shapes: N rows, C labels.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.task import Metric, Task
from pipework.scoring.bootstrap import TaskLogits, paired_interval
from pipework.scoring.evaluation import evaluate
from pipework.train.report.linear_baseline import LinearBaseline

NAMED_AFTER_PEOPLE = (Metric.MATTHEWS, Metric.PEARSON, Metric.SPEARMAN)


class Significance(StrEnum):
    """Whether the interval of a difference is above 0, contains 0, or is below 0."""

    BETTER = "better"
    UNDECIDED = "undecided"
    WORSE = "worse"


LINEAR = "a linear baseline trained on the same rows"
SENTENCES = {
    Significance.BETTER: f"The model beats {LINEAR}",
    Significance.UNDECIDED: f"The model is not significantly better than {LINEAR}",
    Significance.WORSE: f"The model is significantly worse than {LINEAR}",
}


@dataclass(frozen=True, kw_only=True)
class ScoreDifference:
    """The scores of the model and of the baseline on a split, and the interval of their difference.

    `low` and `high` are the 95 % confidence bounds of model minus baseline.
    """

    metric: Metric
    split: str
    model: float
    baseline: float
    low: float
    high: float

    @property
    def outcome(self) -> Significance:
        """Whether the model is significantly better or worse."""
        if self.low > 0:
            return Significance.BETTER
        return Significance.WORSE if self.high < 0 else Significance.UNDECIDED

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        sentence = SENTENCES[self.outcome]
        difference = f"{self.model - self.baseline:+.4f}"
        interval = f"95 % interval {self.low:+.4f} to {self.high:+.4f}"
        return (
            f"{sentence}: {self.split} {metric_in_words(self.metric)} {self.model:.4f} vs "
            f"{self.baseline:.4f}, difference {difference} ({interval})."
        )


def compare_to_baseline(
    logits_NC: NDArray[np.float32], truth: NDArray[np.generic], task: Task, baseline: LinearBaseline
) -> ScoreDifference:
    """Compare the model's and the baseline's logits for the same rows."""
    other = TaskLogits(logits_NC=baseline.logits_NC, task=baseline.task)
    interval = paired_interval(other, TaskLogits(logits_NC=logits_NC, task=task), truth)
    return ScoreDifference(
        metric=task.metric,
        split=baseline.split,
        model=evaluate(logits_NC, truth, task).score,
        baseline=baseline.evaluation.score,
        low=interval.low,
        high=interval.high,
    )


def metric_in_words(metric: Metric) -> str:
    """Return the display name of a metric: macro-F1, Pearson."""
    if metric in NAMED_AFTER_PEOPLE:
        return metric.capitalize()
    return metric.replace("_", "-").replace("f1", "F1")
