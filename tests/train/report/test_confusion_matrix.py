import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import evaluate
from pipework.train.report.confusion_matrix import (
    MAX_CLASSES,
    OTHERS,
    ConfusionMatrix,
    confusion_image,
    most_confused,
)


def evaluation(truth, predicted, labels):
    task = Task(kind=TaskKind.SINGLE_LABEL, labels=tuple(labels), metric=Metric.ACCURACY)
    logits = np.eye(len(labels), dtype=np.float32)[predicted]
    return evaluate(logits, np.array(truth, np.int32), task)


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
