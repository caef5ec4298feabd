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
from pipework.tasks.evaluation import AnsweredRows, Evaluation, class_reports
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
    single_labels,
    softmax,
)
from pipework.tasks.task import BINARY, Floats, Logits, Scorer, Task, Truth

CERTAIN = 10.0  # a logit


class SingleLabelTask(Task):
    """The best of two or more labels; its score is the softmax of the logits.

    An input whose best score is below `min_scores` gets no label: the model abstains. It gets
    `fallback_label` if there is one.
    """

    kind: Literal["single_label"] = "single_label"
    fallback_label: str | None = None
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
            if found and all(isinstance(item, dict) for item in found):
                hint = 'set task.kind = "tokens" if these are spans of the text'
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

    def answered(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return which inputs get a label, [N]."""
        best_N = logits_NC.argmax(axis=1)
        if not self.min_scores:
            return np.ones(len(best_N), np.bool_)
        return np.asarray(self.best_scores(logits_NC) >= self._limits[best_N])

    def best_scores(self, logits_NC: Logits) -> Floats:
        """Return the score of the best label of each input, [N]: float64, to tell those near 1."""
        return np.asarray(np.exp(self.log_probabilities(logits_NC)[:, 0].max(axis=1)))

    def abstained(self, outputs: Outputs) -> int:
        """Return the number of inputs without a label; see `Task`."""
        if not self.min_scores:
            return 0
        return int(np.count_nonzero(~self.answered(outputs.values)))

    @property
    def _limits(self) -> Floats:
        return np.broadcast_to(self.min_scores or 0.0, len(self.labels))

    def predicted_labels(self, logits_NC: Logits) -> NDArray[np.bool_]:
        """Return the best label of each input that gets one, [N, C]."""
        best_N = logits_NC.argmax(axis=1)
        best_NC = np.arange(logits_NC.shape[1]) == best_N[:, None]
        return np.asarray(best_NC & self.answered(logits_NC)[:, None])

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the predictions; see `Task`."""
        logits_NC = outputs.values
        answered_N = self.answered(logits_NC) if self.min_scores else None
        scores_NC = self.probabilities(logits_NC)
        names, fallback = self.labels, self.fallback_label
        return single_labels(scores_NC, logits_NC, names, top_k, answered_N, fallback)

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return label and score; see `Task`. An input without a label has the fallback or None."""
        scores_NC = self.probabilities(outputs.values)
        best_N = outputs.values.argmax(axis=1)
        label_N = np.array([*self.labels, self.fallback_label], np.object_)
        labels = label_N[np.where(self.answered(outputs.values), best_N, -1)].tolist()
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
            decided=self._answered_rows(outputs.values, truth_N == predicted_N),
        )

    def _answered_rows(self, logits_NC: Logits, right_N: NDArray[np.bool_]) -> AnsweredRows | None:
        if not self.min_scores:
            return None
        answered_N = self.answered(logits_NC)
        answered, wrong = int(answered_N.sum()), int((answered_N & ~right_N).sum())
        return AnsweredRows(rows=len(right_N), answered=answered, wrong=wrong)

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
        """Return how far the expected label leads the found one in the expected logits, [X].

        If only one of them has a label, it is the distance of the log-odds from the lowest score.
        """
        rows, best_X = np.arange(len(expected_XC)), expected_XC.argmax(axis=1)
        before_X = expected_XC[rows, best_X].astype(np.float64)
        after_X = expected_XC[rows, found_XC.argmax(axis=1)]
        with np.errstate(invalid="ignore", divide="ignore"):  # infinity minus infinity
            lead_X = np.asarray(before_X - after_X)
            if not self.min_scores:
                return lead_X
            log_X = self.log_probabilities(expected_XC)[rows, 0, best_X]
            score_X, limit_X = np.exp(log_X), self._limits[best_X]
            odds_X = log_X - np.log1p(-score_X) - np.log(limit_X / (1 - limit_X))
        return np.where((lead_X == 0) & flipped_XC.any(axis=1), np.abs(odds_X), lead_X)

    def describe_decision(self) -> str:
        """Return the number of labels and the function of the scores."""
        return f"{counted(len(self.labels), 'label')}, softmax"

    def describe_output(self) -> str:
        """Return the labels, and when there is none."""
        names = ", ".join(f"`{label}`" for label in self.labels)
        limits = (
            f" ({self.limits}; other programs give a label to each text)" if self.limits else ""
        )
        return f"{counted(len(self.labels), 'label')}: {names}{limits}"

    @property
    def limits(self) -> str:
        """The lowest scores; see `Task`."""
        instead = "no label" if self.fallback_label is None else f"`{self.fallback_label}`"
        if len(self.min_scores) <= 1:
            return "".join(f"{instead} below a score of {score:.4g}" for score in self.min_scores)
        each = zip(self.labels, self.min_scores, strict=True)
        return f"{instead} below " + ", ".join(f"{score:.4g} for {label}" for label, score in each)
