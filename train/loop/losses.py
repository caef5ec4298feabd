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
from pipework.train.objectives import Objective


class Losses(Protocol):
    """Computes the losses of train rows."""

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""


class PrecomputedLosses:
    """Returns the output of a model that computes its own losses, as in pretraining."""

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the losses that the model computed."""
        del rows_B
        return logits_BC


class LabelLosses:
    """The losses of rows with respect to their labels."""

    def __init__(self, objective: Objective, truth: NDArray[np.generic]) -> None:
        """Use the labels of all rows, from `pipework.scoring.evaluation.label_array`."""
        self._objective = objective
        self._truth = truth

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""
        truth = self._truth[rows_B]
        wanted = np.int64 if truth.dtype == np.int32 else np.float32
        return self._objective(
            logits_BC, to_device(torch.from_numpy(truth.astype(wanted)), logits_BC.device)
        )


class StandardisedLosses:
    """The losses of a regression on standardised targets: squared errors divided by the variance.

    Targets on a large or small scale would otherwise need another learning rate.
    """

    def __init__(self, losses: Losses, scale: TargetScale) -> None:
        """Divide losses that are squared errors on the scale of the targets."""
        self._losses, self._variance = losses, scale.std**2

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""
        return self._losses(logits_BC, rows_B) / self._variance
