"""Records of how the limits of a task were chosen: when it gives no label, or its interval."""

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
