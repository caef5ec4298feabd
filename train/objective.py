"""The loss of each row, for every kind of task.

Shapes: B rows, C classes.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.manifest import Task, TaskKind


class Objective:
    """What is made small; a mean over rows is left to the caller, who knows how many there are."""

    def __init__(
        self,
        kind: TaskKind,
        *,
        label_smoothing: float = 0.0,
        class_weights_C: torch.Tensor | None = None,
    ) -> None:
        """Keep what the loss needs; the weights have a mean of 1 over the train rows."""
        self._kind = kind
        self._smoothing = label_smoothing
        self._weights_C = class_weights_C

    def __call__(self, logits_BC: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, float32 [B].

        Single label: cross entropy with class indices, int64 [B]. Multi-label: the mean of the
        binary cross entropies with 0 or 1, [B, C]. Regression: the squared error of values, [B].
        """
        logits_BC = logits_BC.float()
        match self._kind:
            case TaskKind.SINGLE_LABEL:
                losses_B = functional.cross_entropy(
                    logits_BC, truth, reduction="none", label_smoothing=self._smoothing
                )
                return losses_B if self._weights_C is None else losses_B * self._weights_C[truth]
            case TaskKind.MULTI_LABEL:
                smooth_BC = truth.float() * (1 - self._smoothing) + self._smoothing / 2
                losses_BC = functional.binary_cross_entropy_with_logits(
                    logits_BC, smooth_BC, reduction="none"
                )
                weights_C = 1.0 if self._weights_C is None else self._weights_C
                return (losses_BC * weights_C).mean(dim=1)
            case TaskKind.REGRESSION:
                return functional.mse_loss(logits_BC[:, 0], truth.float(), reduction="none")


def class_weights(
    wanted: str | tuple[float, ...], truth: NDArray[np.generic], task: Task
) -> torch.Tensor | None:
    """Return the weight of each class, float32 [C], or None where all weigh the same.

    "balanced" weighs a class by the inverse of its rows. The weights are scaled so that their mean
    over the train rows is 1, which leaves the learning rate what it was.

    Raises:
        ConfigError: weights for a regression, or not as many as there are labels.
    """
    if wanted == "equal":
        return None
    classes = len(task.labels)
    if task.kind is TaskKind.REGRESSION or (wanted != "balanced" and len(wanted) != classes):
        found = wanted if wanted == "balanced" else f"{len(wanted)} weights"
        message = f"train.class_weights: found {found} for {task.kind} with {classes} labels"
        raise ConfigError(message, 'set it to "equal", "balanced" or one weight a label')
    counts_C = np.bincount(truth, minlength=classes) if truth.ndim == 1 else truth.sum(axis=0)
    counts_C = np.asarray(counts_C, np.float64)
    given = None if isinstance(wanted, str) else np.array(wanted)
    weights_C = 1 / np.maximum(counts_C, 1) if given is None else given
    mean = (weights_C * counts_C).sum() / counts_C.sum()
    return torch.tensor(weights_C / mean, dtype=torch.float32)
