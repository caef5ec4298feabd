"""Wrong predictions on dev: the confusion matrix, and the most confident errors.

The model or the labels may be wrong. The matrix is limited to the classes with the most errors.

Shapes: N rows, C labels or classes, K classes in the matrix, H and W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.labels import spans_of
from pipework.tasks.predictions import Prediction, Spans
from pipework.tasks.spans import Span
from pipework.tasks.task import Task

MAX_ERRORS = 25
NONE = "(none)"
MAX_CLASSES = 20
MAX_PAIRS = 15
OTHERS = "(all others)"


@dataclass(frozen=True, kw_only=True)
class WrongPrediction:
    """A row with a wrong prediction.

    Attributes:
        example: the row.
        true: its label, labels or value, as text.
        predicted: the predicted label, labels or value, as text.
        score: the probability of the wrong decision; for a regression the predicted value minus
            the true value.
    """

    example: Example
    true: str
    predicted: str
    score: float


def worst_errors(
    examples: Sequence[Example],
    logits_NC: NDArray[np.float32],
    truth: NDArray[np.generic],
    task: Task,
) -> list[WrongPrediction]:
    """Return at most MAX_ERRORS errors, the most confident (for a regression, the largest) first.

    Args:
        examples: the N rows.
        logits_NC: the model's logits.
        truth: as `pipework.scoring.evaluation.label_array` gives it.
        task: kind, labels and thresholds.
    """
    if task.has_values:
        return _largest_errors(
            examples, logits_NC[:, 0].astype(np.float64), np.asarray(truth, np.float64)
        )
    predicted_NC = task.predicted_labels(logits_NC)
    true_NC = task.true_labels(truth)
    confidence_N = task.confidence(logits_NC, truth)
    wrong = [
        row
        for row in np.argsort(-confidence_N, kind="stable")[:MAX_ERRORS]
        if confidence_N[row] >= 0
    ]
    return [
        WrongPrediction(
            example=examples[row],
            true=_label_names(true_NC[row], task.labels),
            predicted=_label_names(predicted_NC[row], task.labels),
            score=float(confidence_N[row]),
        )
        for row in wrong
    ]


def wrong_spans(
    examples: Sequence[Example], predictions: Sequence[Prediction]
) -> list[WrongPrediction]:
    """Return at most MAX_ERRORS texts with wrong or missing spans.

    Those with the most certain wrong span come first.
    """
    errors = []
    for example, prediction in zip(examples, predictions, strict=True):
        if not isinstance(prediction, Spans):
            continue
        true = {*spans_of(example.label)}
        found = {Span(one.start, one.end, one.label): one.score for one in prediction.spans}
        if found.keys() == true:
            continue
        wrong = [span for span in found if span not in true]
        errors.append(
            WrongPrediction(
                example=example,
                true=_span_names(example.text, sorted(true - found.keys())),
                predicted=_span_names(example.text, wrong),
                score=max((found[span] for span in wrong), default=0.0),
            )
        )
    return sorted(errors, key=lambda error: -error.score)[:MAX_ERRORS]


def _span_names(text: str, spans: Sequence[Span]) -> str:
    return ", ".join(f"{text[start:end]} [{label}]" for start, end, label in spans) or NONE


def _largest_errors(
    examples: Sequence[Example], predicted_N: NDArray[np.float64], truth_N: NDArray[np.float64]
) -> list[WrongPrediction]:
    error_N = predicted_N - truth_N
    return [
        WrongPrediction(
            example=examples[row],
            true=f"{truth_N[row]:.4g}",
            predicted=f"{predicted_N[row]:.4g}",
            score=float(error_N[row]),
        )
        for row in np.argsort(-np.abs(error_N), kind="stable")[:MAX_ERRORS]
        if error_N[row]
    ]


def _label_names(flags_C: NDArray[np.bool_], labels: Sequence[str]) -> str:
    names = (label for label, flag in zip(labels, flags_C, strict=True) if flag)
    return ", ".join(names) or NONE


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfusionMatrix:
    """A confusion matrix: counts_KK[true][predicted].

    With more than MAX_CLASSES classes it has those with the most errors; the last row and column
    sum all others.
    """

    labels: tuple[str, ...]
    counts_KK: NDArray[np.int64]

    @classmethod
    def of(cls, evaluation: Evaluation) -> "ConfusionMatrix":
        """Return the matrix of an evaluation of a single-label task."""
        true_K, predicted_K, rows_K = _cells(evaluation)
        labels = tuple(report.label for report in evaluation.classes)
        group_C, size = np.arange(len(labels)), len(labels)
        if size > MAX_CLASSES:
            errors_K = np.where(true_K == predicted_K, 0, rows_K)
            wrong_C = np.bincount(true_K, errors_K, size) + np.bincount(predicted_K, errors_K, size)
            shown = np.sort(np.argsort(-wrong_C, kind="stable")[: MAX_CLASSES - 1])
            group_C, size = np.full(size, MAX_CLASSES - 1), MAX_CLASSES
            group_C[shown] = np.arange(len(shown))
            labels = (*(labels[index] for index in shown), OTHERS)
        counts_KK = np.zeros((size, size), np.int64)
        np.add.at(counts_KK, (group_C[true_K], group_C[predicted_K]), rows_K)
        return cls(labels=labels, counts_KK=counts_KK)

    @property
    def shares(self) -> NDArray[np.float64]:
        """float64 [K, K]: each count divided by the number of rows of its true class."""
        rows_K1 = self.counts_KK.sum(axis=1, keepdims=True)
        return np.asarray(self.counts_KK / np.maximum(rows_K1, 1))


def most_confused(evaluation: Evaluation) -> Sequence[tuple[str, str, int, float]]:
    """Return (true class, predicted class, rows, share of the true class), most rows first."""
    classes = evaluation.classes
    wrong = (cell for cell in evaluation.confusion if cell[0] != cell[1])
    most = sorted(wrong, key=lambda cell: -cell[2])[:MAX_PAIRS]
    return [
        (classes[true].label, classes[predicted].label, rows, rows / classes[true].support)
        for true, predicted, rows in most
    ]


def confusion_image(evaluation: Evaluation) -> NDArray[np.uint8]:
    """Draw the matrix as an image, uint8 [H, W, 3], for TensorBoard.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import rc_context  # noqa: PLC0415  (takes a second)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    matrix = ConfusionMatrix.of(evaluation)
    classes = len(matrix.labels)
    names = [label if label.isascii() else f"{index}" for index, label in enumerate(matrix.labels)]
    with rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(3 + 0.45 * classes, 2 + 0.45 * classes), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.imshow(matrix.shares, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(classes), names, rotation=90)
        axes.set_yticks(range(classes), names)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        for true, predicted in np.argwhere(matrix.counts_KK):
            dark = matrix.shares[true, predicted] > 0.5  # noqa: PLR2004  (half of full blue)
            count, colour = f"{matrix.counts_KK[true, predicted]}", "white" if dark else "black"
            axes.text(predicted, true, count, ha="center", va="center", color=colour, fontsize=8)
        canvas.draw()  # type: ignore[no-untyped-call]
    pixels_HW4 = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return np.array(pixels_HW4[:, :, :3], np.uint8)


def _cells(evaluation: Evaluation) -> NDArray[np.int64]:
    """Return true class, predicted class and rows of the cells of the matrix, [3, K]."""
    return np.array(evaluation.confusion, np.int64).reshape(-1, 3).T
