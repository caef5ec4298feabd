"""Regression: a number per input.

Shapes: N inputs, C classes (one), X comparisons of two outputs.
"""

import re
from collections.abc import Sequence
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pipework.errors import DataError, InputError
from pipework.tasks import metrics
from pipework.tasks.change import PredictionChange
from pipework.tasks.evaluation import CoveredRows, Evaluation
from pipework.tasks.kinds import Metric, Reported
from pipework.tasks.labels import Label
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import (
    HIGH,
    LOW,
    SCORE,
    ColumnType,
    PredictedColumn,
    PredictedColumns,
    Prediction,
    RegressionInterval,
    RegressionValue,
)
from pipework.tasks.task import MIN_RELATIVE_UNIT, Floats, Logits, Scorer, Task, Truth

DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MAX_TARGET = 1e30  # largest target: it fits float32, and its square float64
MIN_UNIT = 1e-9  # see difference_unit


class RegressionTask(Task):
    """A number on the scale of the targets, the only logit.

    `interval` is half the width of an interval around each number; 0 for no interval.
    """

    kind: Literal["regression"] = "regression"
    interval: Annotated[float, Field(ge=0)] = 0.0
    has_labels: ClassVar[bool] = False
    has_values: ClassVar[bool] = True
    fixed_labels: ClassVar[tuple[str, ...] | None] = ("score",)
    truth_type: ClassVar[type[np.generic]] = np.float32
    problem_type: ClassVar[str] = "regression"
    baseline: ClassVar[str] = "ridge regression"
    change_columns: ClassVar[tuple[str, ...]] = ("of the range",)

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the metrics; see `Task`."""
        return (Metric.PEARSON, Metric.SPEARMAN)

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return the number as it is written; see `Task`."""
        number = "" if isinstance(value, bool) else str(value).strip()
        if not DECIMAL.fullmatch(number) or abs(float(number)) > MAX_TARGET:
            message = f"expected a number as label, found {value!r}"
            raise InputError(message, "a regression learns finite numbers, such as 3 or 4.25")
        return number

    @classmethod
    def agreed(cls, answers: Sequence[object]) -> object:
        """Return the median; see `Task`."""
        numbers = [answer for answer in answers if isinstance(answer, int | float)]
        return median(numbers) if len(numbers) == len(answers) else super().agreed(answers)

    def truth(self, rows: Sequence[tuple[str, Label | None]]) -> Truth:
        """Return targets, float32 [N]; see `Task`."""
        return np.array([_target(at, label) for at, label in rows], np.float32)

    def probabilities(self, logits_NC: Logits) -> Logits:
        """Return the values unchanged."""
        return np.asarray(logits_NC, np.float32)

    def log_probabilities(self, logits_NC: Logits) -> Floats:
        """Return no distribution, [N, 0, 0]."""
        return np.zeros((len(logits_NC), 0, 0))

    def predicted_labels(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return no label, [N, C]."""
        return np.zeros(logits_NC.shape, bool)

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the predictions; see `Task`."""
        values, width = _values(outputs.values).tolist(), self.interval
        if not width:
            return [RegressionValue(score=value) for value in values]
        return [
            RegressionInterval(score=value, low=value - width, high=value + width)
            for value in values
        ]

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return the number, and its interval if it has one; see `Task`."""
        values_N = _values(outputs.values)
        columns = {SCORE: values_N}
        if self.interval:
            columns |= {LOW: values_N - self.interval, HIGH: values_N + self.interval}
        return {
            name: PredictedColumn(type=ColumnType.NUMBER, values=numbers_N.tolist())
            for name, numbers_N in columns.items()
        }

    def evaluate(self, outputs: Outputs, truth: Truth) -> Evaluation:
        """Score values against targets [N]; see `Task`."""
        truth_N = np.asarray(truth, np.float64)
        values_N = _values(outputs.values)
        return Evaluation(
            rows=len(truth_N),
            metric=self.metric,
            scores={
                metric: _score(metric, values_N, truth_N)
                for metric in self.applicable_metrics(self.labels)
            }
            | {Reported.MEAN_ABSOLUTE_ERROR: float(np.abs(values_N - truth_N).mean())},
            decided=self._covered_rows(np.abs(values_N - truth_N)),
        )

    def _covered_rows(self, error_N: Floats) -> CoveredRows | None:
        if not self.interval:
            return None
        covered = int((error_N <= self.interval).sum())
        return CoveredRows(rows=len(error_N), covered=covered, width=self.interval)

    def scorer(self, outputs: Outputs, truth: Truth) -> Scorer:
        """Return a function that scores rows; see `Task`."""
        target_N = np.asarray(truth, np.float64)
        values_N = _values(outputs.values)
        return lambda rows: _score(self.metric, values_N[rows], target_N[rows])

    def constant(self, truth: Truth) -> tuple[str, Floats]:
        """Return zero: the metrics do not depend on a constant."""
        return "predicting the same value for every row", np.zeros(1)

    def difference_unit(self, logits_NC: Logits) -> float:
        """Return the standard deviation of the values, which have any scale."""
        values_N = _values(logits_NC)
        # If a model predicts nearly the same value for all inputs, rounding errors still remain.
        return float(max(values_N.std(), MIN_RELATIVE_UNIT * np.abs(values_N).max(), MIN_UNIT))

    def margins(
        self, expected_XC: Logits, found_XC: Logits, flipped_XC: NDArray[np.bool_]
    ) -> Floats:
        """Return 0: no label changes."""
        return np.zeros(len(expected_XC))

    def max_change(self, expected_XC: Logits, found_XC: Logits, target_range: float) -> float:
        """Return the largest change of a value as a share of the range of the targets."""
        with np.errstate(invalid="ignore", over="ignore"):
            moved_XC = np.abs(found_XC.astype(np.float64) - expected_XC)
        moved_XC = np.nan_to_num(moved_XC, nan=np.inf, posinf=np.inf)
        return float(moved_XC.max()) / target_range

    def changed_inputs(self, before: Outputs, after: Outputs, most: int) -> NDArray[np.intp]:
        """Return the inputs whose values moved most."""
        moved_N = np.abs(after.values[:, 0] - before.values[:, 0])
        return np.argsort(-moved_N, kind="stable")[:most]

    def allowed_change(self, *, probability: float, value_range: float) -> float:
        """Return the limit of a value."""
        return value_range

    def describe_change(self, change: PredictionChange) -> str:
        """Return how far the values changed, as text."""
        share = f"{change.max_change:.1%} of the target range"
        if change.target_range is None:  # a record from before the field
            return f"values by up to {share}"
        return f"values by up to {change.max_change * change.target_range:.3g} ({share})"

    def describe_limits(self, *, labels: float, probability: float, value_range: float) -> str:
        """Return the limit of the values, as text."""
        return f"values by up to {value_range:.3g} of the target range"

    def change_cells(self, change: PredictionChange) -> tuple[str, ...]:
        """Return the change as a share of the range."""
        return (f"{change.max_change:.2%}",)

    def describe_decision(self) -> str:
        """Return that there is one number."""
        return "one score"

    def describe_output(self) -> str:
        """Return that there is one number, and its interval."""
        return f"one score, {self.limits}" if self.limits else "one score"

    @property
    def limits(self) -> str:
        """The interval; see `Task`."""
        return f"interval +-{self.interval:.4g}" if self.interval else ""

    def label_text(self, prediction: Any) -> str:  # noqa: ANN401  (of this kind)
        """Return an empty text."""
        return ""


def _values(logits_NC: Logits) -> Floats:
    return logits_NC[:, 0].astype(np.float64)


def _score(metric: Metric, values_N: Floats, truth_N: Floats) -> float:
    if metric is Metric.SPEARMAN:
        return metrics.spearman(values_N, truth_N)
    return metrics.pearson(values_N, truth_N)


def _target(at: str, label: Label | None) -> float:
    if not isinstance(label, str):
        message = f"{at}: expected a number as label, found {label!r}"
        raise DataError(message)
    return float(label)
