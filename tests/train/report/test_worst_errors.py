import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.train.report.worst_errors import MOST, mistakes

LABELS = ("a", "b", "c")
SINGLE = Task(kind=TaskKind.SINGLE_LABEL, labels=LABELS, metric=Metric.ACCURACY)


def rows(count):
    return [Example(text=f"row {place}") for place in range(count)]


def test_the_most_confident_mistake_comes_first_and_right_answers_never():
    logits = np.array([[9, 0, 0], [1, 0, 0], [0, 5, 0], [0, 0, 3]], np.float32)
    found = mistakes(rows(4), logits, np.array([0, 1, 0, 0], np.int32), SINGLE)
    assert [one.example.text for one in found] == ["row 2", "row 3", "row 1"]
    assert [(one.true, one.predicted) for one in found] == [("a", "b"), ("a", "c"), ("b", "a")]
    assert found[2].score == pytest.approx(np.e / (np.e + 2))


def test_there_are_not_too_many():
    logits = np.tile(np.array([1, 0, 0], np.float32), (100, 1))
    assert len(mistakes(rows(100), logits, np.ones(100, np.int32), SINGLE)) == MOST


def test_a_label_that_is_missing_is_as_much_a_mistake_as_one_too_many():
    thresholds = (0.5, 0.9, 0.5)
    task = SINGLE.model_copy(update={"kind": TaskKind.MULTI_LABEL, "thresholds": thresholds})
    logits = np.array([[-9, 1, -9], [-9, -9, -4], [9, -9, -9], [-9, -9, -9]], np.float32)
    truth = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 1, 0]], np.int8)
    found = mistakes(rows(4), logits, truth, task)
    assert [one.example.text for one in found] == ["row 3", "row 1", "row 0"]
    assert [(one.true, one.predicted) for one in found] == [
        ("a, b", "(none)"),
        ("c", "(none)"),
        ("b", "(none)"),
    ]
    assert found[2].score == pytest.approx(1 / (1 + np.e))


def test_of_a_regression_the_largest_errors_come_first():
    task = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
    logits = np.array([[1.0], [4.0], [2.5]], np.float32)
    found = mistakes(rows(3), logits, np.array([1, 2, 5], np.float32), task)
    assert [one.score for one in found] == [-2.5, 2]
    assert (found[0].true, found[0].predicted) == ("5", "2.5")
