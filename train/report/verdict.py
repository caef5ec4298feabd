"""The verdict on a trained model: is it better than a constant and than a linear baseline?

The last lines and the exit code of `pipe train`, `pipe show` and report.html all follow it.

Shapes: N rows, C labels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from pipework.scoring.bootstrap import TaskOutputs, paired_interval
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Metric, metric_in_words
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.train.report.baseline import Baseline

FALL = 0.98  # a loss that ends above this multiple of its start did not fall
OVERFITTED = 0.75  # share of the steps before which the best score is early
USEFUL_MATTHEWS = 0.2
LISTED = 5  # labels in a finding
IMBALANCED = 1.5  # times the share of a label if all were equally frequent


class Outcome(StrEnum):
    """How a model compares with a constant prediction and with a linear baseline.

    BETTER: significantly better than both. WORSE: significantly worse than the baseline. NOTHING:
    not better than the constant.
    """

    BETTER = "better"
    UNDECIDED = "undecided"
    WORSE = "worse"
    NOTHING = "nothing"

    @property
    def sentence(self) -> str:
        """The start of a sentence, which the compared prediction completes."""
        match self:
            case Outcome.BETTER:
                return "The model beats"
            case Outcome.UNDECIDED:
                return "The model is not significantly better than"
            case Outcome.WORSE:
                return "The model is significantly worse than"
            case Outcome.NOTHING:
                return "The model learned nothing useful: it is not better than"


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredRows:
    """The outputs of a model and the labels of a split.

    Attributes:
        leaked_N: whether a row is also in train, bool [N].
    """

    split: str
    outputs: Outputs
    truth: NDArray[np.generic]
    task: Task
    leaked_N: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """What happened during training.

    Attributes:
        losses: mean training losses of the logging windows, in order.
        best_step: the step of the best evaluation on dev.
        step: the last step.
        shortened_from: the steps of all epochs, if `train.max_steps` ended the run before.
        learning_rate, class_weights: as configured.
    """

    losses: Sequence[float]
    best_step: int
    step: int
    shortened_from: int | None
    learning_rate: float
    class_weights: str | tuple[float, ...] = "equal"

    @property
    def ends(self) -> tuple[float, float]:
        """The mean losses of the first and of the last quarter."""
        if not self.losses:  # a linear model
            return 0.0, 0.0
        quarter = max(1, len(self.losses) // 4)
        return mean(self.losses[:quarter]), mean(self.losses[-quarter:])

    @property
    def flat(self) -> bool:
        """Whether the training loss did not fall."""
        first, last = self.ends
        return last > FALL * first


@dataclass(frozen=True, kw_only=True)
class ScoreDifference:
    """The scores of the model and of another prediction for the same rows, and their difference.

    `low` and `high` are the 95 % confidence bounds of the model's score minus the other.
    """

    other: str
    metric: Metric
    split: str
    model: float
    baseline: float
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence bounds."""
        return self.low, self.high

    def __str__(self) -> str:
        """The comparison in words."""
        return (
            f"{self.other}: {self.split} {metric_in_words(self.metric)} {self.model:.4f} vs "
            f"{self.baseline:.4f}, difference {self.model - self.baseline:+.4f} "
            f"(95 % interval {self.low:+.4f} to {self.high:+.4f})."
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a training run.

    Attributes:
        outcome: the comparison in one word.
        sentence: the comparison in one sentence.
        headline: its start, without figures.
        findings: the probable causes, if the outcome is not BETTER, and other advice.
        failed: whether `pipe train` exits with 3.
        constant: the difference to a constant prediction.
        linear: the difference to the linear baseline; None without a baseline.
    """

    outcome: Outcome
    sentence: str
    headline: str
    findings: tuple[str, ...]
    failed: bool
    constant: ScoreDifference
    linear: ScoreDifference | None


def judge(rows: ScoredRows, baseline: Baseline | None, history: TrainingHistory) -> Verdict:
    """Judge a model by the metric of its task.

    Rows that are also in train are left out. A run that `train.max_steps` has shortened does not
    fail, so that a trial can be exported.
    """
    fresh, note = without_leaks(rows)
    constant = compare(fresh, *constant_prediction(fresh))
    linear = None
    if baseline is not None:
        outputs = baseline.outputs
        if fresh is not rows:
            outputs = outputs.take(np.flatnonzero(~rows.leaked_N))
        name = f"{baseline.name}, trained on {baseline.trained_on}"
        linear = compare(fresh, name, TaskOutputs(outputs=outputs, task=baseline.task))
    outcome, difference = _outcome(constant, linear, flat=history.flat)
    if len(np.unique(fresh.truth, axis=0)) == 1:
        outcome, note = Outcome.UNDECIDED, f"{note} All {rows.split} rows have the same label."
    findings: tuple[str, ...] = ()
    if outcome is not Outcome.BETTER:
        scored = fresh.task.evaluate(fresh.outputs, fresh.truth)
        balanced = history.class_weights == "balanced"
        advice = tuple(_imbalance(fresh, scored, outcome, balanced=balanced))
        advice = advice or (_diagnosis(history),)
        findings = (*_collapse(fresh), *advice)
    if outcome is Outcome.NOTHING and linear is not None and linear.baseline > constant.baseline:
        score = f"{metric_in_words(linear.metric)} {linear.baseline:.4f}"
        findings = (f"the labels can be learned: the baseline has {score}", *findings)
    return Verdict(
        outcome=outcome,
        sentence=f"{outcome.sentence} {difference}{note}",
        headline=f"{outcome.sentence} {difference.other}",
        findings=findings,
        failed=outcome is Outcome.NOTHING and history.shortened_from is None,
        constant=constant,
        linear=linear,
    )


def without_leaks(rows: ScoredRows) -> tuple[ScoredRows, str]:
    """Return the rows that are not in train, or all if each is, and a note for the verdict."""
    count, leaked = len(rows.leaked_N), int(rows.leaked_N.sum())
    if not leaked:
        return rows, ""
    if leaked == count:
        return rows, f" All {rows.split} rows are also in train."
    kept_N = np.flatnonzero(~rows.leaked_N)
    kept = replace(rows, outputs=rows.outputs.take(kept_N), truth=rows.truth[kept_N])
    scores = (part.task.evaluate(part.outputs, part.truth).score for part in (rows, kept))
    note = " {:,} of {:,} {} rows are also in train and left out: {:.4f} with them, {:.4f} without."
    return kept, note.format(leaked, count, rows.split, *scores)


def constant_prediction(rows: ScoredRows) -> tuple[str, TaskOutputs]:
    """Return the best prediction that is the same for every row: its description and outputs."""
    name, logits_C = rows.task.constant(rows.truth)
    task = rows.task.model_copy(update={"thresholds": ()})
    values = np.tile(logits_C.astype(np.float32), (len(rows.outputs.values), 1))
    return name, TaskOutputs(outputs=Outputs(values, rows.outputs.offsets), task=task)


def compare(rows: ScoredRows, name: str, other: TaskOutputs) -> ScoreDifference:
    """Compare the outputs of a model with others for the same rows."""
    interval = paired_interval(other, TaskOutputs(outputs=rows.outputs, task=rows.task), rows.truth)
    other_task = other.task.model_copy(update={"metric": rows.task.metric})
    return ScoreDifference(
        other=name,
        metric=rows.task.metric,
        split=rows.split,
        model=rows.task.evaluate(rows.outputs, rows.truth).score,
        baseline=other_task.evaluate(other.outputs, rows.truth).score,
        low=interval.low,
        high=interval.high,
    )


def _outcome(
    constant: ScoreDifference, linear: ScoreDifference | None, *, flat: bool
) -> tuple[Outcome, ScoreDifference]:
    """Return the outcome and the difference that decides it."""
    if constant.model <= constant.baseline or (flat and constant.low <= 0):
        return Outcome.NOTHING, constant
    if constant.low <= 0:
        return Outcome.UNDECIDED, constant
    if linear is None or linear.low > 0:
        return Outcome.BETTER, linear or constant
    return (Outcome.WORSE if linear.high < 0 else Outcome.UNDECIDED), linear


def _collapse(rows: ScoredRows) -> Iterable[str]:
    """Yield a finding if the model predicts the same labels for every row."""
    if rows.task.has_values:
        return
    labels_NC = rows.task.predicted_labels(rows.outputs.values)
    if labels_NC.size and (labels_NC == labels_NC[0]).all():
        found = [rows.task.labels[index] for index in np.flatnonzero(labels_NC[0])]
        names = ", ".join(found[:LISTED]) + (", ..." if len(found) > LISTED else "")
        yield f"the model predicts {names or 'no label'} for every row"


def _imbalance(
    rows: ScoredRows, scored: Evaluation, outcome: Outcome, *, balanced: bool
) -> Iterable[str]:
    metrics = (Metric.ACCURACY, Metric.MICRO_F1)  # high for a constant prediction
    _, counts = np.unique(rows.truth, axis=0, return_counts=True)
    cause = f"{100 * counts.max() / counts.sum():.0f} % of the rows have the same label"
    if rows.task.many_labels:
        having = rows.task.label_counts(rows.truth).max()
        counts = np.array([having, len(rows.truth) - having])
        cause = f"the most frequent label is in {100 * having / counts.sum():.0f} % of the rows"
    settings = [] if balanced else ["train.class_weights to balanced"]
    if scored.metric in metrics:
        settings.append("task.metric to macro_f1")
    if settings and any(_collapse(rows)) and counts.max() > IMBALANCED * counts.mean():
        yield f"{cause}: set {' and '.join(settings)}"
    matthews = scored.scores.get(Metric.MATTHEWS, 0.0)
    if outcome is Outcome.NOTHING and scored.metric in metrics and matthews > USEFUL_MATTHEWS:
        yield (
            f"the labels are imbalanced, and Matthews is {matthews:.3f}: set task.metric to "
            f"matthews or macro_f1 (now {scored.metric})"
        )


def _diagnosis(history: TrainingHistory) -> str:
    """Return the probable cause from the training loss and the scores on dev."""
    if not history.losses:
        return "add rows, or check the labels (pipe check)"
    first, last = history.ends
    losses = f"({first:.3f} at the start, {last:.3f} at the end)"
    if history.shortened_from is not None:
        steps = f"{history.step:,} of {history.shortened_from:,} steps"
        return f"train.max_steps ended the run after {steps}: train longer to judge the model"
    if history.flat:
        rate = f"train.learning_rate (now {history.learning_rate:g})"
        return f"the training loss did not fall {losses}: change {rate} or train.epochs"
    if history.best_step <= OVERFITTED * history.step:
        best = f"the score on dev has not risen since step {history.best_step:,}"
        cause = "the model overfits or has too few rows"
        advice = "add rows, check the labels (pipe check), or lower train.epochs"
        return f"the training loss fell {losses}, but {best} of {history.step:,}: {cause}; {advice}"
    steps = f"at step {history.best_step:,} of {history.step:,}"
    return f"the score on dev was best near the end, {steps}: raise train.epochs, or add rows"
