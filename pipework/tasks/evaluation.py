"""The scores of a model over a split, as results and as records of a manifest."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from pipework.record import Record
from pipework.tasks.kinds import Loss, Metric, Score
from pipework.tasks.metrics import Tally


class SplitMetrics(Record):
    """Scores of the checkpoint on a split; `losses` are set for pretraining.

    `tokens` is the digest of the token ids of all rows, see `pipework.text.encoding.token_digest`.
    """

    rows: int
    scores: dict[Score, float]
    tokens: str | None = None
    losses: dict[Loss, float] = Field(default_factory=dict)


class ClassReport(BaseModel):
    """Precision, recall and F1 of a class; `support` is the number of rows with this label."""

    model_config = ConfigDict(frozen=True)

    label: str
    precision: float
    recall: float
    f1: float
    support: int


class LeakedRows(BaseModel):
    """The rows whose text is also in train: their number, and the scores by the task's metric.

    `score` belongs to the leaked rows, `others` to all other rows; None without such rows.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    score: float
    others: float | None


class CalibrationBin(BaseModel):
    """Predictions with similar probabilities: their mean, the share that is right, their number."""

    model_config = ConfigDict(frozen=True)

    probability: float
    right: float
    predictions: int


class Calibration(BaseModel):
    """How well probabilities agree with how often they are right.

    Attributes:
        error: the expected calibration error, see `pipework.scoring.calibration`.
        low, high: its 95 % interval.
        brier: the Brier score, for two values of a decision from 0 to 1, for more from 0 to 2.
        log_loss: the mean negative logarithm of the probability of the true value.
        bins: from low to high probabilities.
    """

    model_config = ConfigDict(frozen=True)

    error: float
    low: float
    high: float
    brier: float
    log_loss: float
    bins: tuple[CalibrationBin, ...]

    def __str__(self) -> str:
        """The scores in a line."""
        return (
            f"calibration error {self.error:.4f} (95 % interval {self.low:.4f} to {self.high:.4f})"
            f", Brier score {self.brier:.4f}, log loss {self.log_loss:.4f}"
        )


class AnsweredRows(BaseModel):
    """How many rows got a label, and how many of these a wrong one."""

    model_config = ConfigDict(frozen=True)

    rows: int
    answered: int
    wrong: int

    def __str__(self) -> str:
        """The shares in a line."""
        share = self.answered / max(1, self.rows)
        error = f", {self.wrong / self.answered:.2%} of these wrongly" if self.answered else ""
        return f"answered {self.answered:,} of {self.rows:,} rows ({share:.1%}){error}"


class CoveredRows(BaseModel):
    """How many rows have their true value in the interval of a regression, `width` on each side."""

    model_config = ConfigDict(frozen=True)

    rows: int
    covered: int
    width: float

    def __str__(self) -> str:
        """The share in a line."""
        share = self.covered / max(1, self.rows)
        return f"interval +-{self.width:.4g}: {share:.1%} of {self.rows:,} true values are inside"


class Evaluation(BaseModel):
    """Scores over a split; `metric` is the task's metric.

    `classes` is empty for a regression. `confusion` holds, for a single-label task, the index of
    the true class, that of the predicted class, and the number of rows, where there are rows;
    the indices are those of `classes`. `losses` are set for pretraining. `leaked` is
    None if no row is known to be in train, too. `calibration` is None for tasks without
    probabilities, and where nobody asks for it; `uncalibrated` is the one before the calibration,
    None if the model is not calibrated. `decided` is set for a model that gives no label to
    uncertain inputs, whose other scores are those of all labels, and for intervals.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    metric: Metric
    scores: dict[Score, float]
    classes: tuple[ClassReport, ...] = ()
    confusion: tuple[tuple[int, int, int], ...] = ()
    losses: dict[Loss, float] = {}
    leaked: LeakedRows | None = None
    calibration: Calibration | None = None
    uncalibrated: Calibration | None = None
    decided: AnsweredRows | CoveredRows | None = None

    def metrics(self) -> SplitMetrics:
        """Return the part of the evaluation that a manifest stores."""
        return SplitMetrics(rows=self.rows, scores=self.scores, losses=self.losses)

    @property
    def score(self) -> float:
        """The score by the task's metric."""
        return self.scores[self.metric]


def class_reports(tally: Tally, labels: Sequence[str]) -> tuple[ClassReport, ...]:
    """Return the report of each class."""
    columns = (tally.precision, tally.recall, tally.f1, tally.true_C)
    return tuple(
        ClassReport(
            label=label,
            precision=float(precision),
            recall=float(recall),
            f1=float(f1),
            support=int(support),
        )
        for label, precision, recall, f1, support in zip(labels, *columns, strict=True)
    )
