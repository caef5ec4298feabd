"""Windows over texts that are longer than the model reads: how they are cut, and how joined.

Shapes: N inputs, R windows of all inputs, C logits, D distributions of an input, V their values.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from pipework.record import Record
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Logits, Task

TINY = np.finfo(np.float64).tiny  # a score of 0 has no logarithm


class Join(StrEnum):
    """How the outputs of the windows of a text become one.

    mean: the mean of the scores of each label, or of the values of a regression.
    max: with one label for each text, the window whose label has the highest score answers; with
        several labels, each gets its highest score; a regression gets its highest value.
    """

    MEAN = "mean"
    MAX = "max"


class Windows(Record):
    """Windows of `max_length` tokens over longer texts, whose neighbours share tokens.

    Attributes:
        stride: the smallest number of tokens that neighbouring windows share, as in tokenizers.
        join: how the outputs of the windows become one.
    """

    stride: Annotated[int, Field(ge=0)]
    join: Join = Join.MEAN

    def starts(self, tokens: int, room: int) -> list[int]:
        """Return the first token of each window of a text.

        The windows are full and spread evenly; the last ends with the text.

        Args:
            tokens: number of tokens of the text, without special tokens.
            room: the most of them in a window; more than `stride`.
        """
        rest = max(0, tokens - room)
        steps = -(-rest // (room - self.stride))
        return [number * rest // max(1, steps) for number in range(steps + 1)]

    def ends(self, starts: Sequence[int], room: int, tokens: int) -> list[int]:
        """Return the end of the tokens of each window that are nearest to its middle.

        Between two windows it is the middle of the tokens that they share.
        """
        middles = [(start + after + room) // 2 for start, after in pairwise(starts)]
        return [*middles, tokens]

    def joined(self, outputs: Outputs, task: Task) -> Outputs:
        """Return one row of logits for each input from a row for each of its windows.

        The row of an input with one window stays as it is, and so do the rows of tokens: each has
        its place in one window, see `TextEncoder.window_places`.
        """
        if outputs.one_each or task.rows_per_token:
            return outputs
        join = _highest if self.join is Join.MAX else _mean
        with np.errstate(invalid="ignore"):  # NaN stays NaN
            joined_NC = join(outputs, task)
        whole_N = np.flatnonzero(outputs.counts == 1)
        joined_NC[whole_N] = outputs.values[outputs.offsets[whole_N]]
        return Outputs.of(joined_NC)


def _mean(outputs: Outputs, task: Task) -> Logits:
    """Return the logits whose scores are the mean of the scores of the windows."""
    starts_N, counts_N1 = outputs.offsets[:-1], outputs.counts[:, None]
    if task.has_values:
        sums_NC = np.add.reduceat(outputs.values.astype(np.float64), starts_N, axis=0)
        return np.asarray(sums_NC / counts_N1, np.float32)
    scores_RDV = np.exp(task.log_probabilities(outputs.values))
    means_NDV = np.add.reduceat(scores_RDV, starts_N, axis=0) / counts_N1[..., None]
    logs_NDV = np.log(np.maximum(means_NDV, TINY))
    if task.many_labels:  # the log-odds of having a label
        return np.asarray(logs_NDV[..., 0] - logs_NDV[..., 1], np.float32)
    return np.asarray(logs_NDV[:, 0], np.float32)


def _highest(outputs: Outputs, task: Task) -> Logits:
    """Return the highest logit of each label, or the logits of the window with the best label."""
    starts_N = outputs.offsets[:-1]
    if task.has_values or task.many_labels:
        return np.maximum.reduceat(outputs.values, starts_N, axis=0)
    best_R = task.log_probabilities(outputs.values)[:, 0].max(axis=1)
    # The best window of each input first; NaN is never hidden by a number.
    order_R = np.lexsort((np.where(np.isnan(best_R), -np.inf, -best_R), outputs.inputs))
    return outputs.values[order_R[starts_N]]
