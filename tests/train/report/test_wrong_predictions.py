import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import FoundSpan, Spans
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.spans import Span
from pipework.train.report.wrong_predictions import (
    MAX_CLASSES,
    MAX_ERRORS,
    NONE,
    OTHERS,
    ConfusionMatrix,
    confusion_image,
    most_confused,
    worst_errors,
    wrong_spans,
)

LABELS = ("a", "b", "c")
SINGLE = SingleLabelTask(labels=LABELS, metric=Metric.ACCURACY)


def rows(count):
    return [Example(text=f"row {place}") for place in range(count)]


def test_the_most_confident_error_is_first_and_correct_rows_are_left_out():
    logits = np.array([[9, 0, 0], [1, 0, 0], [0, 5, 0], [0, 0, 3]], np.float32)
    errors = worst_errors(rows(4), logits, np.array([0, 1, 0, 0], np.int32), SINGLE)
    assert [error.example.text for error in errors] == ["row 2", "row 3", "row 1"]
    assert [(error.true, error.predicted) for error in errors] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "a"),
    ]
    assert errors[2].score == pytest.approx(np.e / (np.e + 2))


def test_the_number_of_errors_is_limited():
    logits = np.tile(np.array([1, 0, 0], np.float32), (100, 1))
    assert len(worst_errors(rows(100), logits, np.ones(100, np.int32), SINGLE)) == MAX_ERRORS


def test_missing_and_superfluous_labels_are_errors():
    thresholds = (0.5, 0.9, 0.5)
    task = MultiLabelTask(labels=SINGLE.labels, metric=Metric.MICRO_F1, thresholds=thresholds)
    logits = np.array([[-9, 1, -9], [-9, -9, -4], [9, -9, -9], [-9, -9, -9]], np.float32)
    truth = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0]], np.int8)
    errors = worst_errors(rows(4), logits, truth, task)
    assert [error.example.text for error in errors] == ["row 3", "row 1", "row 0"]
    assert [(error.true, error.predicted) for error in errors] == [
        ("a, b", "(none)"),
        ("c", "(none)"),
        ("b", "(none)"),
    ]
    assert errors[2].score == pytest.approx(1 / (1 + np.e))


def test_the_largest_regression_errors_are_first():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    logits = np.array([[1.0], [4.0], [2.5]], np.float32)
    errors = worst_errors(rows(3), logits, np.array([1, 2, 5], np.float32), task)
    assert [error.score for error in errors] == [-2.5, 2]
    assert (errors[0].true, errors[0].predicted) == ("5", "2.5")


def evaluation(truth, predicted, labels):
    task = SingleLabelTask(labels=tuple(labels), metric=Metric.ACCURACY)
    logits = np.eye(len(labels), dtype=np.float32)[predicted]
    return task.evaluate(Outputs.of(logits), np.array(truth, np.int32))


@pytest.fixture
def many():
    """100 classes; a quarter of the rows of classes 90 to 99 is predicted as the previous class."""
    truth = np.repeat(np.arange(100), 4)
    predicted = np.where((truth >= 90) & (np.arange(400) % 4 == 0), truth - 1, truth)
    return evaluation(truth, predicted, [f"class {number}" for number in range(100)])


def test_a_small_matrix_has_all_classes():
    matrix = ConfusionMatrix.of(evaluation([0, 0, 1], [0, 1, 1], "ab"))
    assert matrix.labels == ("a", "b")
    assert matrix.counts_KK.tolist() == [[1, 1], [0, 1]]
    assert matrix.shares.tolist() == [[0.5, 0.5], [0, 1]]


def test_a_large_matrix_has_the_classes_with_the_most_errors(many):
    matrix = ConfusionMatrix.of(many)
    assert len(matrix.labels) == MAX_CLASSES
    assert matrix.labels[-1] == OTHERS
    assert {f"class {number}" for number in range(89, 100)} <= set(matrix.labels)
    assert matrix.counts_KK.sum() == 400
    assert matrix.counts_KK.trace() == 390


def test_the_most_frequent_confusion_is_first():
    pairs = most_confused(evaluation([0, 0, 0, 1, 1, 2], [1, 1, 0, 1, 2, 2], "abc"))
    assert list(pairs) == [("a", "b", 2, 2 / 3), ("b", "c", 1, 1 / 2)]


def test_a_class_without_rows_is_in_the_matrix():
    assert ConfusionMatrix.of(evaluation([0, 0], [0, 1], "ab")).shares[1].tolist() == [0, 0]


def test_the_image_is_coloured_where_there_are_rows(many):
    few = evaluation([0, 0, 1], [0, 1, 1], ["$a$", "\u732b"])
    for case in (few, many):
        pixels = confusion_image(case)
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        assert max(pixels.shape) < 1600
        red_HW, _, blue_HW = np.moveaxis(pixels.astype(np.int64), 2, 0)
        blue = (blue_HW > red_HW + 60).mean()
        assert 0.01 < blue < 0.5


def test_texts_with_wrong_and_missing_spans_are_listed():
    text = "Ana met Bob in Oslo"
    ana, bob, oslo = Span(0, 3, "PER"), Span(8, 11, "PER"), Span(15, 19, "LOC")

    def found(*spans):
        return Spans(
            spans=tuple(
                FoundSpan(start=start, end=end, label=label, score=score, text=text[start:end])
                for (start, end, label), score in spans
            )
        )

    examples = [Example(text=text, label=(ana, bob, oslo))] * 4
    predictions = [
        found((ana, 0.9), (bob, 0.9)),
        found((ana, 0.9), (bob, 0.9), (oslo, 0.8)),
        found((ana, 0.9), (bob._replace(label="LOC"), 0.6), (oslo, 0.8)),
        found((ana, 0.9), (bob, 0.9), (oslo, 0.8), (Span(4, 7, "PER"), 0.7)),
    ]
    errors = [
        (error.true, error.predicted, error.score) for error in wrong_spans(examples, predictions)
    ]
    assert errors == [
        (NONE, "met [PER]", 0.7),
        ("Bob [PER]", "Bob [LOC]", 0.6),
        ("Oslo [LOC]", NONE, 0.0),
    ]
