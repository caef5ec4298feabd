"""The losses of each kind of task: of labels, and of the outputs of teachers.

`OBJECTIVES` has an entry for each kind that is trained on labels. The losses are not a part of
`pipework.tasks`, because they need torch.

Shapes: K teachers, B rows, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipework.errors import ConfigError
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import TargetScale, Task
from pipework.tasks.tokens import TokenTask

Weights = torch.Tensor | None  # of the classes, see `class_weights`


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """The losses of a kind of task, float32 [B]; the caller computes the mean over rows.

    Attributes:
        of_labels: the losses of logits [B, C] with respect to labels as in `Task.truth`, given the
            label smoothing and the class weights.
        of_teachers: the losses of logits [B, C] with respect to logits of teachers [K, B, C], given
            the temperature T; 0 where student and teachers agree. The factor T squared makes the
            size of the gradient independent of T.
    """

    of_labels: Callable[[torch.Tensor, torch.Tensor, float, Weights], torch.Tensor]
    of_teachers: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def _cross_entropy(
    logits_BC: torch.Tensor, truth_B: torch.Tensor, smoothing: float, weights_C: Weights
) -> torch.Tensor:
    losses_B = functional.cross_entropy(
        logits_BC.float(), truth_B, reduction="none", label_smoothing=smoothing
    )
    return losses_B if weights_C is None else losses_B * weights_C[truth_B]


def _token_cross_entropy(
    logits_RC: torch.Tensor, truth_R: torch.Tensor, smoothing: float, weights_C: Weights
) -> torch.Tensor:
    """Return the losses of tokens, 0 without a tag."""
    losses_R = _cross_entropy(logits_RC, truth_R.clamp(min=0), smoothing, weights_C)
    return losses_R * (truth_R >= 0)


def _divergence(
    logits_BC: torch.Tensor, teacher_KBC: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the divergence from the mean of the probabilities of the teachers."""
    target_BC = (teacher_KBC / temperature).softmax(dim=-1).mean(dim=0)
    log_student_BC = (logits_BC.float() / temperature).log_softmax(dim=-1)
    divergence_BC = functional.kl_div(log_student_BC, target_BC, reduction="none")
    return divergence_BC.sum(dim=1) * temperature**2


def _binary_cross_entropies(
    logits_BC: torch.Tensor, truth_BC: torch.Tensor, smoothing: float, weights_C: Weights
) -> torch.Tensor:
    smooth_BC = truth_BC.float() * (1 - smoothing) + smoothing / 2
    losses_BC = functional.binary_cross_entropy_with_logits(
        logits_BC.float(), smooth_BC, pos_weight=weights_C, reduction="none"
    )
    return losses_BC.mean(dim=1)


def _mean_divergence(
    logits_BC: torch.Tensor, teacher_KBC: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the mean of the divergences of the labels."""
    target_BC = (teacher_KBC / temperature).sigmoid().mean(dim=0)
    cross_entropy_BC = functional.binary_cross_entropy_with_logits(
        logits_BC.float() / temperature, target_BC, reduction="none"
    )
    negative_BC = 1 - target_BC
    positive_part_BC = torch.xlogy(target_BC, target_BC)
    negative_entropy_BC = positive_part_BC + torch.xlogy(negative_BC, negative_BC)
    return (cross_entropy_BC + negative_entropy_BC).mean(dim=1) * temperature**2


def _squared_error(
    logits_B1: torch.Tensor, truth_B: torch.Tensor, smoothing: float, weights: Weights
) -> torch.Tensor:
    del smoothing, weights
    return functional.mse_loss(logits_B1[:, 0].float(), truth_B.float(), reduction="none")


def _squared_distance(
    logits_B1: torch.Tensor, teacher_KB1: torch.Tensor, temperature: float
) -> torch.Tensor:
    del temperature
    return _squared_error(logits_B1, teacher_KB1[:, :, 0].mean(dim=0), 0.0, None)


OBJECTIVES: dict[type[Task], Objective] = {
    SingleLabelTask: Objective(of_labels=_cross_entropy, of_teachers=_divergence),
    MultiLabelTask: Objective(of_labels=_binary_cross_entropies, of_teachers=_mean_divergence),
    RegressionTask: Objective(of_labels=_squared_error, of_teachers=_squared_distance),
    TokenTask: Objective(of_labels=_token_cross_entropy, of_teachers=_divergence),
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
    counts_C = task.label_counts(truth)
    total = counts_C.sum()  # of rows, or of tokens
    others_C = np.full(len(task.labels), total / len(task.labels))
    if task.many_labels:
        others_C = len(truth) - counts_C
    balanced_C = np.where(counts_C, others_C / np.maximum(counts_C, 1), 1)
    weights_C = balanced_C if isinstance(wanted, str) else np.array(wanted, np.float64)
    if not task.many_labels:
        weights_C = weights_C * total / (weights_C * counts_C).sum()
    return torch.tensor(weights_C, dtype=torch.float32)
