"""The training losses of rows, with respect to labels or precomputed.

Shapes: B rows, C classes.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.tasks.task import TargetScale
from pipework.train.data.batches import Rows
from pipework.train.loop.model_inputs import to_device
from pipework.train.objectives import Objective, Weights

# From logits [B, C] and the numbers of their rows to the loss of each row, float32 [B].
Losses = Callable[[torch.Tensor, Rows], torch.Tensor]


def label_losses(
    objective: Objective,
    truth: NDArray[np.generic],
    smoothing: float = 0.0,
    weights_C: Weights = None,
) -> Losses:
    """Return the losses with respect to the labels of all rows, a `label_array`."""

    def losses(logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        wanted = np.int64 if truth.dtype == np.int32 else np.float32
        truth_B = to_device(torch.from_numpy(truth[rows_B].astype(wanted)), logits_BC.device)
        return objective.of_labels(logits_BC, truth_B, smoothing, weights_C)

    return losses


def standardised(losses: Losses, scale: TargetScale) -> Losses:
    """Return squared errors divided by the variance of the targets.

    Targets on a large or small scale would otherwise need another learning rate.
    """
    return lambda logits_BC, rows_B: losses(logits_BC, rows_B) / scale.std**2
