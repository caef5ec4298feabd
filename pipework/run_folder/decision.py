"""Records of how the limits of a task were chosen: when it gives a label, or its interval."""

from pipework.record import Record
from pipework.tasks.evaluation import AnsweredRows


class Decision(Record):
    """How the lowest scores with a label were chosen, see `pipework.scoring.abstention`.

    The scores are part of the task.

    Attributes:
        source: the labelled rows: a file, or a split of the run.
        rows: their number.
        max_error: the limit on the share of wrong labels, with 95 % confidence.
        per_label: whether it holds for each label.
        answered: the rows with a label.
        wrong: those of them with a wrong label.
    """

    source: str
    rows: int
    max_error: float
    per_label: bool = False
    answered: int
    wrong: int

    def __str__(self) -> str:
        """The shares in a line."""
        counts = AnsweredRows(rows=self.rows, answered=self.answered, wrong=self.wrong)
        each = "of each label " if self.per_label else ""
        return f"{self.source}: {counts}; {each}at most {self.max_error:.2%} with 95 % confidence"


class LabelThresholds(Record):
    """How the thresholds of a multi-label task were chosen. They are part of the task.

    Attributes:
        source: the labelled rows: a file, or a split of the run.
        rows: their number.
        min_precision: the limit on the precision of each label, with 95 % confidence for all.
        min_recall: the same for the recall; one of both is None.
        predicted: the predicted labels of the rows.
        right: those of them that are right.
        true: the labels of the rows.
        not_shown: labels whose rows cannot show the limit: it is not promised for them.
    """

    source: str
    rows: int
    min_precision: float | None = None
    min_recall: float | None = None
    predicted: int
    right: int
    true: int
    not_shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The precision and the recall in a line."""
        precision = self.right / self.predicted if self.predicted else 1.0
        recall = self.right / self.true if self.true else 1.0
        name = "precision" if self.min_recall is None else "recall"
        limit = self.min_recall or self.min_precision or 0.0
        others = f", not shown for {', '.join(self.not_shown)}" if self.not_shown else ""
        return (
            f"{self.source}: {self.rows:,} rows, precision {precision:.1%}, recall {recall:.1%} of "
            f"all labels; {name} of each label at least {limit:.2%} with 95 % confidence{others}"
        )


class TargetInterval(Record):
    """How the interval of a regression was chosen: split conformal prediction, Lei et al. 2018.

    Attributes:
        source: the labelled rows: a file, or a split of the run.
        rows: their number.
        coverage: the probability that the interval holds the true value of a new input.
        width: half the width of the interval.
    """

    source: str
    rows: int
    coverage: float
    width: float

    def __str__(self) -> str:
        """The interval in a line."""
        inside = f"the true value of {100 * self.coverage:.4g}% of new inputs"
        return f"{self.source}: interval +-{self.width:.4g} holds {inside}, from {self.rows:,} rows"


AnyDecision = Decision | LabelThresholds | TargetInterval
