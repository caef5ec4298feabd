"""The loss of each row, for every kind of task.

Shapes: B rows, C classes.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.run_folder.task import Task, TaskKind, no_classifier
from pipework.train.data.batches import Rows
from pipework.train.loop.model_inputs import moved


class Objective:
    """What is made small; a mean over rows is left to the caller, who knows how many there are."""

    def __init__(
        self,
        kind: TaskKind,
        *,
        label_smoothing: float = 0.0,
        class_weights_C: torch.Tensor | None = None,
    ) -> None:
        """Keep what the loss needs; the weights are those of `class_weights`."""
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
                    logits_BC, smooth_BC, pos_weight=self._weights_C, reduction="none"
                )
                return losses_BC.mean(dim=1)
            case TaskKind.REGRESSION:
                return functional.mse_loss(logits_BC[:, 0], truth.float(), reduction="none")
            case TaskKind.PRETRAIN:
                raise no_classifier()


class Losses(Protocol):
    """What rows of train cost."""

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""


class AsTheyAre:
    """For a model that computes its own losses, since it computes only where something is asked."""

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return what the model gave."""
        del rows_B
        return logits_BC


class HardLabels:
    """The losses of rows by what is true of them."""

    def __init__(self, objective: Objective, truth: NDArray[np.generic]) -> None:
        """Take the truth of all rows, as `pipework.scoring.evaluation.truth` gives it."""
        self._objective = objective
        self._truth = truth

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""
        truth = self._truth[rows_B]
        wanted = np.int64 if truth.dtype == np.int32 else np.float32
        return self._objective(
            logits_BC, moved(torch.from_numpy(truth.astype(wanted)), logits_BC.device)
        )


def class_weights(
    wanted: str | tuple[float, ...], truth: NDArray[np.generic], task: Task
) -> torch.Tensor | None:
    """Return the weight of each class, float32 [C], or None where all weigh the same.

    Single label: "balanced" weighs a class by the inverse of its rows; the weights are scaled so
    that their mean over the train rows is 1, which leaves the learning rate what it was.
    Multi-label: a weight is of the rows that have the label; "balanced" is the number of rows that
    have it not, for each that has it. A class without rows weighs 1.

    Raises:
        ConfigError: not as many weights as there are labels.
    """
    if wanted == "equal":
        return None
    if wanted != "balanced" and len(wanted) != len(task.labels):
        message = f"train.class_weights: found {len(wanted)} weights for {len(task.labels)} labels"
        raise ConfigError(message, 'set it to "equal", "balanced" or one weight a label')
    given_C = None if isinstance(wanted, str) else np.array(wanted, np.float64)
    if task.kind is TaskKind.MULTI_LABEL:
        counts_C = np.asarray(truth, np.int64).sum(axis=0)
        balanced_C = np.where(counts_C, (len(truth) - counts_C) / np.maximum(counts_C, 1), 1)
        weights_C = balanced_C if given_C is None else given_C
        return torch.tensor(weights_C, dtype=torch.float32)
    counts_C = np.bincount(np.asarray(truth, np.int64), minlength=len(task.labels))
    mean = len(truth) / len(task.labels)
    balanced_C = np.where(counts_C, mean / np.maximum(counts_C, 1), 1)
    weights_C = balanced_C if given_C is None else given_C
    return torch.tensor(weights_C * len(truth) / (weights_C * counts_C).sum(), dtype=torch.float32)
