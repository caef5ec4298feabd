"""The training losses of rows, with respect to labels or precomputed.

Shapes: B rows, C classes.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.tasks.task import TargetScale
from pipework.train.data.batches import Rows
from pipework.train.loop.model_inputs import to_device
from pipework.train.objectives import Objective, Weights


class Losses(Protocol):
    """Computes the losses of train rows."""

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""


class LabelLosses:
    """The losses of rows with respect to their labels."""

    def __init__(
        self,
        objective: Objective,
        truth: NDArray[np.generic],
        smoothing: float = 0.0,
        weights_C: Weights = None,
    ) -> None:
        """Use the labels of all rows, from `pipework.scoring.evaluation.label_array`."""
        self._objective = objective
        self._truth = truth
        self._smoothing = smoothing
        self._weights_C = weights_C

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""
        truth = self._truth[rows_B]
        wanted = np.int64 if truth.dtype == np.int32 else np.float32
        truth_B = to_device(torch.from_numpy(truth.astype(wanted)), logits_BC.device)
        return self._objective.of_labels(logits_BC, truth_B, self._smoothing, self._weights_C)


def standardised(losses: Losses, scale: TargetScale) -> Losses:
    """Return squared errors divided by the variance of the targets.

    Targets on a large or small scale would otherwise need another learning rate.
    """
    return lambda logits_BC, rows_B: losses(logits_BC, rows_B) / scale.std**2
