import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import evaluate
from pipework.train.report.confusion_matrix import (
    MOST_CLASSES,
    OTHERS,
    Confusion,
    confusion_image,
    most_confused,
)


def evaluation(truth, given, labels):
    task = Task(kind=TaskKind.SINGLE_LABEL, labels=tuple(labels), metric=Metric.ACCURACY)
    logits = np.eye(len(labels), dtype=np.float32)[given]
    return evaluate(logits, np.array(truth, np.int32), task)


@pytest.fixture
def many():
    """100 classes, of which those from 90 on are taken for the one before."""
    truth = np.repeat(np.arange(100), 4)
    given = np.where((truth >= 90) & (np.arange(400) % 4 == 0), truth - 1, truth)
    return evaluation(truth, given, [f"class {number}" for number in range(100)])


def test_few_classes_are_all_shown():
    found = Confusion.of(evaluation([0, 0, 1], [0, 1, 1], "ab"))
    assert found.labels == ("a", "b")
    assert found.counts_KK.tolist() == [[1, 1], [0, 1]]
    assert found.shares.tolist() == [[0.5, 0.5], [0, 1]]


def test_of_many_classes_those_with_the_most_mistakes_are_shown(many):
    found = Confusion.of(many)
    assert len(found.labels) == MOST_CLASSES
    assert found.labels[-1] == OTHERS
    assert {f"class {number}" for number in range(89, 100)} <= set(found.labels)
    assert found.counts_KK.sum() == 400
    assert found.counts_KK.trace() == 390


def test_what_is_taken_for_what_most_often_comes_first():
    found = most_confused(evaluation([0, 0, 0, 1, 1, 2], [1, 1, 0, 1, 2, 2], "abc"))
    assert list(found) == [("a", "b", 2, 2 / 3), ("b", "c", 1, 1 / 2)]


def test_a_class_without_rows_is_shown_all_the_same():
    assert Confusion.of(evaluation([0, 0], [0, 1], "ab")).shares[1].tolist() == [0, 0]


def test_the_picture_shows_where_the_rows_are(many):
    few = evaluation([0, 0, 1], [0, 1, 1], ["$a$", "\u732b"])
    for one in (few, many):
        pixels = confusion_image(one)
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        assert max(pixels.shape) < 1600
        red_HW, _, blue_HW = np.moveaxis(pixels.astype(np.int64), 2, 0)
        blue = (blue_HW > red_HW + 60).mean()
        assert 0.01 < blue < 0.5
