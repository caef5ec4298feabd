"""Classification with any number of labels per input.

Shapes: N inputs, C classes, X comparisons of two outputs.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pipework.errors import DataError, InputError
from pipework.progress import counted
from pipework.tasks import metrics
from pipework.tasks.evaluation import Evaluation, class_reports
from pipework.tasks.kinds import Metric
from pipework.tasks.labels import Label, class_index, flagged, is_vector, parse_list, parse_name
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import (
    LABEL,
    SCORE,
    ColumnType,
    MultiLabel,
    PredictedColumn,
    PredictedColumns,
    Prediction,
    ranked_scores,
    sigmoid,
)
from pipework.tasks.single_label import CERTAIN
from pipework.tasks.task import Floats, Logits, Scorer, Task, Truth

THRESHOLD = 0.5
MIN_GAP = 1e-4  # between the scores on both sides of a threshold


class MultiLabelTask(Task):
    """All labels whose scores, the sigmoids of the logits, reach their thresholds."""

    kind: Literal["multi_label"] = "multi_label"
    many_labels: ClassVar[bool] = True
    truth_type: ClassVar[type[np.generic]] = np.int8
    problem_type: ClassVar[str] = "multi_label_classification"
    logits_per_margin: ClassVar[int] = 1  # the other side is a fixed threshold

    @property
    def truth_shape(self) -> tuple[int, ...]:
        """0 or 1 for each label."""
        return (len(self.labels),)

    @property
    def label_thresholds(self) -> dict[str, float]:
        """The threshold of each label; 0.5 if none was chosen."""
        chosen = self.min_scores or self.thresholds or (THRESHOLD,)
        thresholds = chosen * len(self.labels) if len(chosen) == 1 else chosen
        return dict(zip(self.labels, thresholds, strict=True))

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the metrics; see `Task`."""
        return (Metric.MICRO_F1, Metric.MACRO_F1, Metric.ACCURACY)

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return the labels, from a list, flags by name, or a text with a separator; see `Task`."""
        if isinstance(value, dict):
            value = flagged(value)
        if isinstance(value, str):
            value = _split(value, separator)
        if not isinstance(value, list):
            found = "null" if value is None else type(value).__name__
            message = f"expected a list of labels, found {found}"
            raise InputError(message, "write a row without labels as an empty list, []")
        if value and is_vector(value):
            if len(vector) == len(value):
                return tuple(flagged(dict(zip(vector, value, strict=True))))
            if len(set(map(str, value))) < len(value):
                message = f"expected labels, found the vector {value}"
                hint = f"set task.labels to its {len(value)} names, in this order"
                raise InputError(message, hint)
        return tuple(dict.fromkeys(parse_name(item) for item in value))

    @classmethod
    def agreed(cls, answers: Sequence[object]) -> object:
        """Return the labels that more than half of the annotators gave; see `Task`."""
        lists = [answer for answer in answers if isinstance(answer, list)]
        if len(lists) < len(answers) or any(map(is_vector, filter(None, lists))):
            return super().agreed(answers)
        counts = Counter(chain.from_iterable(map(dict.fromkeys, lists)))
        return [label for label, count in counts.items() if 2 * count > len(answers)]

    def truth(self, rows: Sequence[tuple[str, Label | None]]) -> Truth:
        """Return 0 or 1 for each label, int8 [N, C]; see `Task`."""
        return np.stack([self._flags(at, label) for at, label in rows])

    def _flags(self, at: str, label: Label | None) -> NDArray[np.int8]:
        if not isinstance(label, tuple):
            message = f"{at}: expected a list of labels, found {label!r}"
            raise DataError(message, f"known labels: {', '.join(self.labels)}")
        index = {name: position for position, name in enumerate(self.labels)}
        true_C = np.zeros(len(self.labels), np.int8)
        true_C[[class_index(at, str(name), index) for name in label]] = 1
        return true_C

    def probabilities(self, logits_NC: Logits) -> Logits:
        """Return the sigmoids."""
        return sigmoid(logits_NC)

    def log_probabilities(self, logits_NC: Logits) -> Floats:
        """Return log-probabilities [N, C, 2] of having a label, and of not having it."""
        logits = logits_NC.astype(np.float64)
        both = (-np.logaddexp(0, -logits), -np.logaddexp(0, logits))
        return np.asarray(np.stack(both, axis=2))

    def predicted_labels(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return which labels reach their thresholds, [N, C]."""
        return self._reached(self.probabilities(logits_NC))

    def threshold_columns(
        self, outputs: Outputs, truth: Truth
    ) -> list[tuple[Floats, NDArray[np.bool_]]]:
        """Return for each label its scores, and whether the rows have it."""
        scores_NC = self.probabilities(outputs.values).astype(np.float64)
        return [*zip(scores_NC.T, self.true_labels(truth).T, strict=True)]

    def decided(self, limits: Sequence[float]) -> Self:
        """Return the task with these thresholds of the labels."""
        return self.model_copy(update={"min_scores": tuple(limits)})

    def tally(self, outputs: Outputs, truth: Truth) -> metrics.Tally:
        """Return the right, true and predicted labels."""
        return metrics.tally_labels(self.true_labels(truth), self.predicted_labels(outputs.values))

    def _reached(self, scores_NC: Logits) -> NDArray[np.bool_]:
        # A threshold between two adjacent float32 numbers would be rounded to one of them.
        thresholds_C = np.array([*self.label_thresholds.values()], np.float64)
        return np.asarray(scores_NC.astype(np.float64) >= thresholds_C)

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the predictions; see `Task`."""
        scores_NC = self.probabilities(outputs.values)
        ranked = ranked_scores(scores_NC, scores_NC, self.labels, top_k)
        return [
            MultiLabel(labels=tuple(self.labels[index] for index in chosen), scores=scores)
            for chosen, scores in zip(self._chosen(scores_NC), ranked, strict=True)
        ]

    def _chosen(self, scores_NC: Logits) -> list[list[int]]:
        """Return the indices of the predicted labels of each input, the best first."""
        order_NC = (-scores_NC).argsort(axis=1, kind="stable")
        reached_NC = np.take_along_axis(self._reached(scores_NC), order_NC, axis=1)
        rows = zip(order_NC, reached_NC, strict=True)
        return [order_C[reached_C].tolist() for order_C, reached_C in rows]

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return lists of labels and of their scores; see `Task`."""
        scores_NC = self.probabilities(outputs.values)
        chosen = self._chosen(scores_NC)
        labels = [[self.labels[index] for index in indices] for indices in chosen]
        scores = [row_C[indices].tolist() for row_C, indices in zip(scores_NC, chosen, strict=True)]
        return {
            LABEL: PredictedColumn(type=ColumnType.TEXT, many=True, values=labels),
            SCORE: PredictedColumn(type=ColumnType.NUMBER, many=True, values=scores),
        }

    def evaluate(self, outputs: Outputs, truth: Truth) -> Evaluation:
        """Score logits against 0 or 1 for each label, [N, C]; see `Task`."""
        truth_NC = self.true_labels(truth)
        predicted_NC = self.predicted_labels(outputs.values)
        return Evaluation(
            rows=len(truth_NC),
            metric=self.metric,
            scores={
                metric: _score(metric, truth_NC, predicted_NC)
                for metric in self.applicable_metrics(self.labels)
            }
            | dict(metrics.roc_areas(outputs.values, truth_NC)),
            classes=class_reports(metrics.tally_labels(truth_NC, predicted_NC), self.labels),
        )

    def scorer(self, outputs: Outputs, truth: Truth) -> Scorer:
        """Return a function that scores rows; see `Task`."""
        true_NC = self.true_labels(truth)
        predicted_NC = self.predicted_labels(outputs.values)
        return lambda rows: _score(self.metric, true_NC[rows], predicted_NC[rows])

    def with_thresholds(self, logits_NC: Logits, truth: Truth) -> Self:
        """Return the task with the thresholds of `choose_thresholds`."""
        chosen = choose_thresholds(self.probabilities(logits_NC), truth)
        return self.model_copy(update={"thresholds": chosen})

    def fit_calibration(
        self, logits_NC: Logits, truth: Truth, *, offsets: bool = True
    ) -> LogitScale | None:
        """Return a scale and an offset for each label; see `Task`."""
        return LogitScale.of_labels(logits_NC, self.true_labels(truth), offsets=offsets)

    def confidence(self, logits_NC: Logits, truth: Truth) -> Floats:
        """Return the score of the most confident wrong decision, [N]; -1 without one."""
        predicted_NC = self.predicted_labels(logits_NC)
        scores_NC = self.probabilities(logits_NC)
        confidence_NC = np.where(predicted_NC, scores_NC, 1 - scores_NC)
        wrong_NC = predicted_NC != self.true_labels(truth)
        return np.asarray(np.where(wrong_NC, confidence_NC, -1).max(axis=1), np.float64)

    def true_labels(self, truth: Truth) -> NDArray[np.bool_]:
        """Return the labels of rows, [N, C]."""
        return np.asarray(truth, np.bool_)

    def constant(self, truth: Truth) -> tuple[str, Floats]:
        """Return the most frequent labels, as many as a row has on average."""
        counts_C = np.asarray(truth, np.int64).sum(axis=0)
        wanted = max(1, round(int(counts_C.sum()) / len(truth)))
        common_C = np.argsort(-counts_C, kind="stable")[:wanted]
        logits_C = np.full(len(self.labels), -CERTAIN)
        logits_C[common_C] = CERTAIN
        names = ", ".join(repr(self.labels[index]) for index in common_C)
        return f"predicting {names} for every row", logits_C

    def margins(
        self, expected_XC: Logits, found_XC: Logits, flipped_XC: NDArray[np.bool_]
    ) -> Floats:
        """Return the largest distance of the logit of a changed label from its threshold, [X]."""
        low = np.finfo(np.float64).tiny
        high = 1 - np.finfo(np.float64).eps
        threshold_C = np.clip([*self.label_thresholds.values()], low, high)
        margin_XC = np.abs(expected_XC - np.log(threshold_C / (1 - threshold_C)))
        return np.asarray(np.where(flipped_XC, margin_XC, 0).max(axis=1))

    def describe_decision(self) -> str:
        """Return the number of labels and the function of the scores."""
        return f"{counted(len(self.labels), 'label')}, a sigmoid each"

    def describe_output(self) -> str:
        """Return the labels."""
        names = ", ".join(f"`{label}`" for label in self.labels)
        limits = f" ({self.limits})" if self.limits else ""
        return f"{counted(len(self.labels), 'label')} (several may apply): {names}{limits}"

    @property
    def limits(self) -> str:
        """Whether the thresholds are those of the training; see `Task`."""
        chosen = "thresholds chosen by an export; the scores use the thresholds of the training"
        return chosen if self.min_scores else ""


def _split(text: str, separator: str | None) -> list[object]:
    """Return the labels in a cell: a list as Python or JSON write it, or with a separator."""
    if (items := parse_list(text)) is not None:
        return items
    if separator is None:
        message = "expected a list of labels, found a string"
        several = "; for columns of 0 and 1 set data.columns.label to a list of their names"
        raise InputError(message, f"set data.separator to the separator between labels{several}")
    return [*text.split(separator)] if text.strip() else []


def _score(metric: Metric, truth_NC: NDArray[np.bool_], predicted_NC: NDArray[np.bool_]) -> float:
    match metric:
        case Metric.ACCURACY:
            return float((truth_NC == predicted_NC).all(axis=1).mean())
        case Metric.MICRO_F1:
            return metrics.tally_labels(truth_NC, predicted_NC).micro_f1
        case Metric.MACRO_F1:
            return metrics.tally_labels(truth_NC, predicted_NC).macro_f1
        case _:
            raise ValueError(metric)


def choose_thresholds(scores_NC: Logits, truth_NC: NDArray[np.generic]) -> tuple[float, ...]:
    """Return the threshold of each label that maximises its F1 on labelled rows.

    A threshold is the midpoint of two adjacent scores, or of the lowest score and 0, that differ by
    at least `MIN_GAP`: rounding errors of an engine must not change the prediction of a row. If no
    scores do, any two different scores will do. Of several with the same F1 the highest is chosen;
    a label without rows gets 0.5.

    Args:
        scores_NC: probabilities, float32 [N, C].
        truth_NC: 0 or 1, [N, C].
    """
    truth = np.asarray(truth_NC, np.int64)
    columns = zip(scores_NC.astype(np.float64).T, truth.T, strict=True)
    return tuple(_threshold(scores_N, truth_N) for scores_N, truth_N in columns)


def _threshold(scores_N: NDArray[np.float64], truth_N: NDArray[np.int64]) -> float:
    if not truth_N.any():
        return THRESHOLD
    order_N = np.argsort(-scores_N, kind="stable")
    ranked_N, hits_N = scores_N[order_N], np.cumsum(truth_N[order_N])
    below_N = np.append(ranked_N[1:], 0)
    f1_N = 2 * hits_N / (np.arange(1, len(ranked_N) + 1) + truth_N.sum())
    gap_N = ranked_N - below_N
    apart_N = gap_N >= MIN_GAP
    f1_N[~apart_N if apart_N.any() else gap_N == 0] = -1
    best = int(f1_N.argmax())
    return float((ranked_N[best] + below_N[best]) / 2)
