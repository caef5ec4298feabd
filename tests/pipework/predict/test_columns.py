"""Columns of predictions have what the predictions of `decide` have."""

import numpy as np
import pytest

from pipework.predict.columns import ColumnType, predicted_columns
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.predictions import decide

LOGITS_NC = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
LABELS = ("a", "b", "c")
SINGLE = Task(kind=TaskKind.SINGLE_LABEL, labels=LABELS, metric=Metric.ACCURACY)
MULTI = Task(
    kind=TaskKind.MULTI_LABEL, labels=LABELS, metric=Metric.MICRO_F1, thresholds=(0.3, 0.5, 0.7)
)
REGRESSION = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)


def values(logits_NC, task, truncated=()):
    found = predicted_columns(logits_NC, truncated, task)
    return {name: column.values for name, column in found.items()}


def test_a_label_and_its_score():
    found = values(LOGITS_NC, SINGLE, truncated=(1, 199))
    expected = decide(LOGITS_NC, SINGLE)
    assert found["predicted_label"] == [one.label for one in expected]
    assert found["predicted_score"] == [one.score for one in expected]
    assert np.flatnonzero(found["truncated"]).tolist() == [1, 199]


def test_several_labels_and_their_scores_best_first():
    found = values(LOGITS_NC, MULTI)
    expected = decide(LOGITS_NC, MULTI)
    assert found["predicted_label"] == [[*one.labels] for one in expected]
    assert found["predicted_score"] == [
        [one.scores[label] for label in one.labels] for one in expected
    ]


def test_a_regression_has_no_label():
    found = values(LOGITS_NC[:, :1], REGRESSION)
    assert [*found] == ["predicted_score", "truncated"]
    assert found["predicted_score"] == LOGITS_NC[:, 0].tolist()


@pytest.mark.parametrize("task", [SINGLE, MULTI])
def test_types_are_known_without_rows(task):
    found = predicted_columns(np.empty((0, 3), np.float32), (), task)
    types = {name: (column.type, column.many) for name, column in found.items()}
    many = task is MULTI
    assert types == {
        "predicted_label": (ColumnType.TEXT, many),
        "predicted_score": (ColumnType.NUMBER, many),
        "truncated": (ColumnType.FLAG, False),
    }
