import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.train.report.worst_errors import MAX_ERRORS, worst_errors

LABELS = ("a", "b", "c")
SINGLE = Task(kind=TaskKind.SINGLE_LABEL, labels=LABELS, metric=Metric.ACCURACY)


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
    task = SINGLE.model_copy(update={"kind": TaskKind.MULTI_LABEL, "thresholds": thresholds})
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
    task = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
    logits = np.array([[1.0], [4.0], [2.5]], np.float32)
    errors = worst_errors(rows(3), logits, np.array([1, 2, 5], np.float32), task)
    assert [error.score for error in errors] == [-2.5, 2]
    assert (errors[0].true, errors[0].predicted) == ("5", "2.5")
