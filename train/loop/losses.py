"""The training losses of rows, with respect to labels or precomputed.

Shapes: B rows, C classes, T tokens of all B rows.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.tasks.task import TargetScale
from pipework.train.data.batches import Rows
from pipework.train.loop.to_device import to_device
from pipework.train.objectives import Objective, Weights

# From logits [B, C] and the numbers of their rows to the loss of each row, float32 [B].
Losses = Callable[[torch.Tensor, Rows], torch.Tensor]


def label_losses(
    objective: Objective,
    truth: NDArray[np.generic],
    smoothing: float = 0.0,
    weights_C: Weights = None,
    lengths_N: NDArray[np.int64] | None = None,
) -> Losses:
    """Return the losses with respect to the labels of all rows, a `label_array`.

    With `lengths_N`, the tokens of each row, logits and labels have a row for each token. The loss
    of a row is the sum over its tokens with a label, divided by the mean number of these in all
    rows: each token has the same weight.
    """
    per_row = 1.0 if lengths_N is None else _labelled(truth, lengths_N) / len(truth)

    def losses(logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        chosen = truth[rows_B]
        if lengths_N is not None:
            tokens = [
                labels[:length] for labels, length in zip(chosen, lengths_N[rows_B], strict=True)
            ]
            chosen = np.concatenate(tokens)
        wanted = np.int64 if truth.dtype in {np.dtype(np.int16), np.dtype(np.int32)} else np.float32
        truth_B = to_device(chosen.astype(wanted), logits_BC.device)
        found = objective.of_labels(logits_BC, truth_B, smoothing, weights_C)
        return found if lengths_N is None else _sums(found, lengths_N[rows_B]) / per_row

    return losses


def _labelled(truth: NDArray[np.generic], lengths_N: NDArray[np.int64]) -> int:
    """Return the number of tokens with a label, at least one."""
    labelled = np.asarray(truth, np.int64)[:, : int(lengths_N.max())] >= 0
    inside = np.arange(labelled.shape[1]) < lengths_N[:, None]
    return max(1, int((labelled & inside).sum()))


def _sums(losses_T: torch.Tensor, lengths_B: NDArray[np.int64]) -> torch.Tensor:
    """Return the sum over the tokens of each row; a token without a label has the loss 0."""
    row_T = to_device(np.repeat(np.arange(len(lengths_B)), lengths_B), losses_T.device)
    zeros_B = torch.zeros(len(lengths_B), dtype=losses_T.dtype, device=losses_T.device)
    return zeros_B.index_add(0, row_T, losses_T)


def standardised(losses: Losses, scale: TargetScale) -> Losses:
    """Return squared errors divided by the variance of the targets.

    Targets on a large or small scale would otherwise need another learning rate.
    """
    return lambda logits_BC, rows_B: losses(logits_BC, rows_B) / scale.std**2
