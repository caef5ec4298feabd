"""Predictions as columns, for tables and the parts of bulk jobs.

Shapes: N inputs, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.task import Task, TaskKind
from pipework.scoring.predictions import predicted_labels, probabilities

Logits = NDArray[np.float32]
LABEL, SCORE, TRUNCATED = "predicted_label", "predicted_score", "truncated"


class ColumnType(StrEnum):
    """The type of a value, or of the items of a list of values."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedColumn:
    """A column with a value for each input.

    Attributes:
        type: type of a value, or of the items of a list; known also without inputs.
        many: whether each value is a list.
        values: the values.
    """

    type: ColumnType
    many: bool = False
    values: Sequence[Any]


PredictedColumns = dict[str, PredictedColumn]


def predicted_columns(logits_NC: Logits, truncated: Sequence[int], task: Task) -> PredictedColumns:
    """Return the columns `predicted_label`, `predicted_score` and `truncated`.

    They have what the predictions of `decide` have, but are made for many rows at a time. A
    regression has no label. In a multi-label task, label and score are lists, best label first.
    """
    flags_N = np.zeros(len(logits_NC), np.bool_)
    flags_N[list(truncated)] = True
    flags = PredictedColumn(type=ColumnType.FLAG, values=flags_N.tolist())
    labels, scores = _labels_and_scores(logits_NC, task)
    many = task.kind is TaskKind.MULTI_LABEL
    columns = {
        LABEL: PredictedColumn(type=ColumnType.TEXT, many=many, values=labels),
        SCORE: PredictedColumn(type=ColumnType.NUMBER, many=many, values=scores),
        TRUNCATED: flags,
    }
    if task.kind is TaskKind.REGRESSION:
        del columns[LABEL]
    return columns


def _labels_and_scores(logits_NC: Logits, task: Task) -> tuple[list[Any], list[Any]]:
    scores_NC = probabilities(logits_NC, task)
    if task.kind is TaskKind.REGRESSION:
        return [], scores_NC[:, 0].tolist()
    if task.kind is TaskKind.SINGLE_LABEL:
        best_N = scores_NC.argmax(axis=1)
        labels = [task.labels[index] for index in best_N.tolist()]
        return labels, scores_NC[np.arange(len(best_N)), best_N].tolist()
    order_NC = (-scores_NC).argsort(axis=1, kind="stable")
    reached_NC = predicted_labels(logits_NC, task)
    chosen = [
        [index for index in order_C if reached_C[index]]
        for order_C, reached_C in zip(order_NC.tolist(), reached_NC.tolist(), strict=True)
    ]
    names = [[task.labels[index] for index in indices] for indices in chosen]
    rows = zip(scores_NC.tolist(), chosen, strict=True)
    return names, [[scores_C[index] for index in indices] for scores_C, indices in rows]
