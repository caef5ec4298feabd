"""The losses of each kind of task: of labels, and of the outputs of teachers.

`OBJECTIVES` has an entry for each kind that is trained on labels. These classes are not a part of
`pipework.tasks`, because they need torch.

Shapes: K teachers, B rows, C classes.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import TargetScale, Task


class Objective(ABC):
    """The loss function of a task; the caller computes the mean over rows."""

    def __init__(
        self, *, label_smoothing: float = 0.0, class_weights_C: torch.Tensor | None = None
    ) -> None:
        """Set the parameters of the loss; the weights come from `class_weights`."""
        self._smoothing = label_smoothing
        self._weights_C = class_weights_C

    @abstractmethod
    def __call__(self, logits_BC: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return the loss of each row, float32 [B]; `truth` are labels as in `Task.truth`."""

    @staticmethod
    @abstractmethod
    def distillation(
        logits_BC: torch.Tensor, teacher_KBC: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the loss of each row, float32 [B], 0 where student and teachers agree."""


class SingleLabelObjective(Objective):
    """Cross entropy with class indices, int64 [B]."""

    def __call__(self, logits_BC: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return the losses, see `Objective`."""
        losses_B = functional.cross_entropy(
            logits_BC.float(), truth, reduction="none", label_smoothing=self._smoothing
        )
        return losses_B if self._weights_C is None else losses_B * self._weights_C[truth]

    @staticmethod
    def distillation(
        logits_BC: torch.Tensor, teacher_KBC: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the divergence from the mean of the probabilities of the teachers."""
        target_BC = (teacher_KBC / temperature).softmax(dim=-1).mean(dim=0)
        log_student_BC = (logits_BC / temperature).log_softmax(dim=-1)
        divergence_BC = functional.kl_div(log_student_BC, target_BC, reduction="none")
        return divergence_BC.sum(dim=1) * temperature**2


class MultiLabelObjective(Objective):
    """The mean of the binary cross entropies with 0 or 1, [B, C]."""

    def __call__(self, logits_BC: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return the losses, see `Objective`."""
        smooth_BC = truth.float() * (1 - self._smoothing) + self._smoothing / 2
        losses_BC = functional.binary_cross_entropy_with_logits(
            logits_BC.float(), smooth_BC, pos_weight=self._weights_C, reduction="none"
        )
        return losses_BC.mean(dim=1)

    @staticmethod
    def distillation(
        logits_BC: torch.Tensor, teacher_KBC: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the mean of the divergences of the labels."""
        target_BC = (teacher_KBC / temperature).sigmoid().mean(dim=0)
        cross_entropy_BC = functional.binary_cross_entropy_with_logits(
            logits_BC / temperature, target_BC, reduction="none"
        )
        negative_BC = 1 - target_BC
        positive_part_BC = torch.xlogy(target_BC, target_BC)
        negative_entropy_BC = positive_part_BC + torch.xlogy(negative_BC, negative_BC)
        return (cross_entropy_BC + negative_entropy_BC).mean(dim=1) * temperature**2


class RegressionObjective(Objective):
    """The squared error of values, [B]."""

    def __call__(self, logits_BC: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        """Return the losses, see `Objective`."""
        return functional.mse_loss(logits_BC[:, 0].float(), truth.float(), reduction="none")

    @staticmethod
    def distillation(
        logits_BC: torch.Tensor, teacher_KBC: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the squared distance from the mean of the values of the teachers."""
        del temperature
        target_B = teacher_KBC[:, :, 0].mean(dim=0)
        return functional.mse_loss(logits_BC[:, 0], target_B, reduction="none")


OBJECTIVES: dict[type[Task], type[Objective]] = {
    SingleLabelTask: SingleLabelObjective,
    MultiLabelTask: MultiLabelObjective,
    RegressionTask: RegressionObjective,
}


def target_scale(task: Task, truth: NDArray[np.generic]) -> TargetScale | None:
    """Return mean and standard deviation of train targets; None if the task is no regression."""
    if not task.has_values:
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
    if task.many_labels:
        counts_C = np.asarray(truth, np.int64).sum(axis=0)
        balanced_C = np.where(counts_C, (len(truth) - counts_C) / np.maximum(counts_C, 1), 1)
        weights_C = balanced_C if custom_C is None else custom_C
        return torch.tensor(weights_C, dtype=torch.float32)
    counts_C = np.bincount(np.asarray(truth, np.int64), minlength=len(task.labels))
    mean = len(truth) / len(task.labels)
    balanced_C = np.where(counts_C, mean / np.maximum(counts_C, 1), 1)
    weights_C = balanced_C if custom_C is None else custom_C
    return torch.tensor(weights_C * len(truth) / (weights_C * counts_C).sum(), dtype=torch.float32)
