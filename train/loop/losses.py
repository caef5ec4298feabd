"""The training loss of each row, for every kind of task.

Shapes: B rows, C classes.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.run_folder.task import TargetScale, Task, TaskKind, not_a_classifier
from pipework.train.data.batches import Rows
from pipework.train.loop.model_inputs import to_device


class Objective:
    """The loss function of a task; the caller computes the mean over rows."""

    def __init__(
        self,
        kind: TaskKind,
        *,
        label_smoothing: float = 0.0,
        class_weights_C: torch.Tensor | None = None,
    ) -> None:
        """Set the parameters of the loss; the weights come from `class_weights`."""
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
                raise not_a_classifier()


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


def target_scale(task: Task, truth: NDArray[np.generic]) -> TargetScale | None:
    """Return mean and standard deviation of train targets; None if the task is no regression."""
    if task.kind is not TaskKind.REGRESSION:
        return None
    values = np.asarray(truth, np.float64)
    return TargetScale(mean=float(values.mean()), std=float(values.std()) or 1.0)


def class_weights(
    wanted: str | tuple[float, ...], truth: NDArray[np.generic], task: Task
) -> torch.Tensor | None:
    """Return the weight of each class, float32 [C], or None if all weights are equal.

    Single label: "balanced" is the inverse of the number of rows of a class, scaled to a mean of 1
    over the train rows, so that the learning rate keeps its meaning. Multi-label: the weight
    applies to the rows that have the label; "balanced" is the number of rows without the label
    divided by the number of rows with it. A class without rows has weight 1.

    Raises:
        ConfigError: the number of weights differs from the number of labels.
    """
    if wanted == "equal":
        return None
    if wanted != "balanced" and len(wanted) != len(task.labels):
        message = f"train.class_weights: found {len(wanted)} weights for {len(task.labels)} labels"
        raise ConfigError(message, 'set it to "equal", "balanced" or one weight per label')
    custom_C = None if isinstance(wanted, str) else np.array(wanted, np.float64)
    if task.kind is TaskKind.MULTI_LABEL:
        counts_C = np.asarray(truth, np.int64).sum(axis=0)
        balanced_C = np.where(counts_C, (len(truth) - counts_C) / np.maximum(counts_C, 1), 1)
        weights_C = balanced_C if custom_C is None else custom_C
        return torch.tensor(weights_C, dtype=torch.float32)
    counts_C = np.bincount(np.asarray(truth, np.int64), minlength=len(task.labels))
    mean = len(truth) / len(task.labels)
    balanced_C = np.where(counts_C, mean / np.maximum(counts_C, 1), 1)
    weights_C = balanced_C if custom_C is None else custom_C
    return torch.tensor(weights_C * len(truth) / (weights_C * counts_C).sum(), dtype=torch.float32)
