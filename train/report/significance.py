"""Whether the model beats the linear one, and how sure that is.

Shapes: N rows of dev, C labels.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.task import Metric, Task
from pipework.scoring.bootstrap import Answers, paired_interval
from pipework.scoring.evaluation import evaluate
from pipework.train.report.linear_baseline import Baseline

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
    """Compare the model's logits on dev with the baseline's answers to the same rows."""
    theirs = Answers(logits_NC=baseline.logits_NC, task=baseline.task)
    interval = paired_interval(theirs, Answers(logits_NC=logits_NC, task=task), truth)
    return Verdict(
        metric=task.metric,
        model=evaluate(logits_NC, truth, task).score,
        baseline=baseline.evaluation.score,
        low=interval.low,
        high=interval.high,
    )


def in_words(metric: Metric) -> str:
    """Return the name of a score as a person writes it: macro-F1, Pearson."""
    if metric in PERSONS:
        return metric.capitalize()
    return metric.replace("_", "-").replace("f1", "F1")
