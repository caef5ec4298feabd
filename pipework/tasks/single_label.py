"""Classification with one label per input.

Shapes: N inputs, C classes, X comparisons of two outputs.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipework.errors import InputError
from pipework.progress import counted
from pipework.tasks import metrics
from pipework.tasks.evaluation import Evaluation, class_reports
from pipework.tasks.kinds import Metric, Reported, Score
from pipework.tasks.labels import Label, class_index, flagged, parse_name
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.metrics import Tally
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import (
    LABEL,
    SCORE,
    ColumnType,
    PredictedColumn,
    PredictedColumns,
    Prediction,
    SingleLabel,
    ranked_scores,
    softmax,
)
from pipework.tasks.task import BINARY, Floats, Logits, Scorer, Task, Truth

CERTAIN = 10.0  # a logit


class SingleLabelTask(Task):
    """The best of two or more labels; its score is the softmax of the logits."""

    kind: Literal["single_label"] = "single_label"
    fewest_labels: ClassVar[int] = 2
    problem_type: ClassVar[str] = "single_label_classification"

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the metrics; the micro-F1, which equals the accuracy, is left out."""
        plain = (Metric.ACCURACY, Metric.MACRO_F1, Metric.MATTHEWS)
        binary = (Metric.F1,) if len(labels) == BINARY else ()
        directed = (Metric.DIRECTIONAL_F1,) if metrics.is_directed(labels) else ()
        return (*directed, *plain, *binary)

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return the name of the label, also from a list of one, or from flags; see `Task`."""
        found = flagged(value) if isinstance(value, dict) else value
        if not isinstance(found, list):
            return parse_name(found)
        if len(found) != 1:
            message = f"expected one label, found {len(found)}: {found[:5]}"
            hint = 'set task.kind = "multi_label", or data.skip_unlabelled = true for rows without'
            raise InputError(message, hint)
        return parse_name(found[0])

    def truth(self, rows: Sequence[tuple[str, Label | None]]) -> Truth:
        """Return class indices, int32 [N]; see `Task`."""
        index = {label: position for position, label in enumerate(self.labels)}
        return np.array([class_index(at, label, index) for at, label in rows], np.int32)

    def probabilities(self, logits_NC: Logits) -> Logits:
        """Return the softmax."""
        return softmax(logits_NC)

    def log_probabilities(self, logits_NC: Logits) -> Floats:
        """Return log-probabilities [N, 1, C]."""
        logits = logits_NC.astype(np.float64)
        highest = logits.max(axis=1, keepdims=True)
        total = highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        return np.asarray((logits - total)[:, None])

    def predicted_labels(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return the best label of each input, [N, C]."""
        best_N = logits_NC.argmax(axis=1)
        return np.asarray(np.arange(logits_NC.shape[1]) == best_N[:, None])

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the predictions; see `Task`."""
        logits_NC = outputs.values
        ranked = ranked_scores(self.probabilities(logits_NC), logits_NC, self.labels, top_k)
        return [_prediction(scores) for scores in ranked]

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return label and score; see `Task`."""
        scores_NC = self.probabilities(outputs.values)
        best_N = outputs.values.argmax(axis=1)
        labels = [self.labels[index] for index in best_N.tolist()]
        scores = scores_NC[np.arange(len(best_N)), best_N].tolist()
        return {
            LABEL: PredictedColumn(type=ColumnType.TEXT, values=labels),
            SCORE: PredictedColumn(type=ColumnType.NUMBER, values=scores),
        }

    def evaluate(self, outputs: Outputs, truth: Truth) -> Evaluation:
        """Score logits against class indices [N]; see `Task`."""
        truth_N = np.asarray(truth, np.int64)
        predicted_N = outputs.values.argmax(axis=1)
        tally = metrics.tally_classes(truth_N, predicted_N, len(self.labels))
        scores: dict[Score, float] = {
            metric: self._score(metric, tally) for metric in self.applicable_metrics(self.labels)
        }
        if len(self.labels) == BINARY:
            positive, score_N2 = self.positive_index, outputs.values.astype(np.float64)
            score_N = score_N2[:, positive] - score_N2[:, 1 - positive]
            if (area := metrics.roc_area(score_N, truth_N == positive)) is not None:
                scores[Reported.ROC_AUC] = area
        return Evaluation(
            rows=len(truth_N),
            metric=self.metric,
            scores=scores,
            classes=class_reports(tally, self.labels),
            confusion=tuple(map(tuple, metrics.confusion(truth_N, predicted_N).tolist())),
        )

    def scorer(self, outputs: Outputs, truth: Truth) -> Scorer:
        """Return a function that scores rows; see `Task`."""
        true_N = np.asarray(truth, np.int64)
        predicted_N = outputs.values.argmax(axis=1)
        return lambda rows: self._score(
            self.metric, metrics.tally_classes(true_N[rows], predicted_N[rows], len(self.labels))
        )

    def _score(self, metric: Metric, tally: Tally) -> float:
        match metric:
            case Metric.ACCURACY | Metric.MICRO_F1:
                return metrics.accuracy(tally)
            case Metric.MACRO_F1:
                return tally.macro_f1
            case Metric.F1:
                return float(tally.f1[self.positive_index])
            case Metric.MATTHEWS:
                return metrics.matthews(tally)
            case Metric.DIRECTIONAL_F1:
                return metrics.directional_f1(tally, self.labels)
            case _:
                raise ValueError(metric)

    def fit_calibration(
        self, logits_NC: Logits, truth: Truth, *, offsets: bool = True
    ) -> LogitScale | None:
        """Return the temperature; see `Task`."""
        if self.rows_per_token:  # no row of logits belongs to a label
            return None
        return LogitScale.of_temperature(logits_NC, self.true_labels(truth))

    def confidence(self, logits_NC: Logits, truth: Truth) -> Floats:
        """Return the score of each wrong label, [N]; -1 for right labels."""
        wrong_NC = self.predicted_labels(logits_NC) & ~self.true_labels(truth)
        scores_NC = np.where(wrong_NC, self.probabilities(logits_NC), -1)
        return np.asarray(scores_NC.max(axis=1), np.float64)

    def true_labels(self, truth: Truth) -> NDArray[np.bool_]:
        """Return the label of each row, [N, C]."""
        return np.asarray(np.arange(len(self.labels)) == np.asarray(truth)[:, None])

    def constant(self, truth: Truth) -> tuple[str, Floats]:
        """Return the most frequent label; for the metric f1 the positive label."""
        if self.metric is Metric.F1:
            common = self.positive_index
        else:
            counts_C = np.bincount(np.asarray(truth, np.int64), minlength=len(self.labels))
            common = int(np.argsort(-counts_C, kind="stable")[0])
        logits_C = np.full(len(self.labels), -CERTAIN)
        logits_C[common] = CERTAIN
        return f"predicting {self.labels[common]!r} for every row", logits_C

    def margins(
        self, expected_XC: Logits, found_XC: Logits, flipped_XC: NDArray[np.bool_]
    ) -> Floats:
        """Return how far the expected label leads the found one in the expected logits, [X]."""
        rows = np.arange(len(expected_XC))
        before_X = expected_XC[rows, expected_XC.argmax(axis=1)].astype(np.float64)
        after_X = expected_XC[rows, found_XC.argmax(axis=1)]
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            return np.asarray(before_X - after_X)

    def describe_decision(self) -> str:
        """Return the number of labels and the function of the scores."""
        return f"{counted(len(self.labels), 'label')}, softmax"

    def describe_output(self) -> str:
        """Return the labels."""
        names = ", ".join(f"`{label}`" for label in self.labels)
        return f"{counted(len(self.labels), 'label')}: {names}"


def _prediction(ranked: dict[str, float]) -> SingleLabel:
    label = next(iter(ranked))
    return SingleLabel(label=label, score=ranked[label], scores=ranked)
