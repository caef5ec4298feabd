"""Columns of predictions have what the predictions of `decode` have."""

import numpy as np
import pytest

from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import ColumnType
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask

LOGITS_NC = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
LABELS = ("a", "b", "c")
SINGLE = SingleLabelTask(labels=LABELS, metric=Metric.ACCURACY)
MULTI = MultiLabelTask(labels=LABELS, metric=Metric.MICRO_F1, thresholds=(0.3, 0.5, 0.7))
REGRESSION = RegressionTask(labels=("score",), metric=Metric.PEARSON)


def values(logits_NC, task):
    return {name: column.values for name, column in task.columns(Outputs.of(logits_NC)).items()}


def test_a_label_and_its_score():
    found = values(LOGITS_NC, SINGLE)
    expected = SINGLE.decode(Outputs.of(LOGITS_NC))
    assert found["predicted_label"] == [one.label for one in expected]
    assert found["predicted_score"] == [one.score for one in expected]


def test_several_labels_and_their_scores_best_first():
    found = values(LOGITS_NC, MULTI)
    expected = MULTI.decode(Outputs.of(LOGITS_NC))
    assert found["predicted_label"] == [[*one.labels] for one in expected]
    assert found["predicted_score"] == [
        [one.scores[label] for label in one.labels] for one in expected
    ]


def test_a_regression_has_no_label():
    found = values(LOGITS_NC[:, :1], REGRESSION)
    assert [*found] == ["predicted_score"]
    assert found["predicted_score"] == LOGITS_NC[:, 0].tolist()


@pytest.mark.parametrize("task", [SINGLE, MULTI])
def test_types_are_known_without_rows(task):
    found = task.columns(Outputs.of(np.empty((0, 3), np.float32)))
    types = {name: (column.type, column.many) for name, column in found.items()}
    many = task is MULTI
    assert types == {
        "predicted_label": (ColumnType.TEXT, many),
        "predicted_score": (ColumnType.NUMBER, many),
    }
