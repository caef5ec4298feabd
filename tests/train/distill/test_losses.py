"""Distillation losses."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipework.tasks.registry import kind_of
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.train import TrainSettings
from pipework.train.distill.losses import distillation_losses
from pipework.train.loop.losses import label_losses
from pipework.train.objectives import OBJECTIVES

SINGLE = OBJECTIVES[SingleLabelTask]
LOSSES = {kind_of(task): objective.of_teachers for task, objective in OBJECTIVES.items()}


def logits(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def width(kind):
    return 1 if kind == "regression" else 4


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_and_gradient_are_zero_if_student_and_teacher_agree(kind):
    teacher_1BC = logits(1, 5, width(kind))
    student_BC = teacher_1BC[0].clone().requires_grad_()
    losses_B = LOSSES[kind](student_BC, teacher_1BC, 3.0)
    assert losses_B.detach().abs().max() < 1e-6
    losses_B.sum().backward()
    assert student_BC.grad.abs().max() < 1e-6


@pytest.mark.parametrize("kind", LOSSES)
def test_the_minimum_of_the_loss_is_the_mean_of_the_teachers(kind):
    teacher_KBC = logits(3, 5, width(kind))
    student_BC = torch.zeros(5, width(kind), requires_grad=True)
    optimizer = torch.optim.Adam([student_BC], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        LOSSES[kind](student_BC, teacher_KBC, 2.0).sum().backward()
        optimizer.step()
    match kind:
        case "single_label" | "tokens":
            student, expected = (student_BC / 2).softmax(1), (teacher_KBC / 2).softmax(2).mean(0)
        case "multi_label":
            student, expected = (student_BC / 2).sigmoid(), (teacher_KBC / 2).sigmoid().mean(0)
        case "regression":
            student, expected = student_BC, teacher_KBC.mean(0)
    torch.testing.assert_close(student.detach(), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
def test_the_gradient_size_does_not_depend_on_the_temperature(kind):
    """Soft-label gradients scale with 1 / T squared (Hinton et al.); the loss compensates."""

    def gradient(temperature):
        student_BC = logits(5, 4).requires_grad_()
        LOSSES[kind](student_BC, logits(1, 5, 4), temperature).sum().backward()
        return float(student_BC.grad.norm())

    assert gradient(100.0) == pytest.approx(gradient(10.0), rel=0.1)


def test_the_loss_is_the_reference_formula():
    student_BC, teacher_1BC = logits(6, 4), logits(1, 6, 4)
    expected = (
        functional.kl_div(
            (student_BC / 2).log_softmax(1), (teacher_1BC[0] / 2).softmax(1), reduction="batchmean"
        )
        * 4
    )
    losses_B = SINGLE.of_teachers(student_BC, teacher_1BC, 2.0)
    torch.testing.assert_close(losses_B.mean(), expected)


def soft(weight, files, labelled=3):
    truth_N = np.array([0, 1, 2], np.int32)
    settings = TrainSettings(temperature=1.0, soft_weight=weight)
    hard = label_losses(SINGLE, truth_N)
    return hard, distillation_losses(
        hard, [files], labelled=labelled, objective=SINGLE, settings=settings
    )


def test_soft_weight_weighs_soft_and_hard_labels():
    teacher_NC = logits(3, 4).numpy()
    rows_B, student_BC = np.array([2, 0]), logits(2, 4)
    hard, both = soft(0.25, [teacher_NC])
    teacher_1BC = torch.from_numpy(teacher_NC[rows_B])[None]
    expected_B = 0.75 * hard(student_BC, rows_B) + 0.25 * SINGLE.of_teachers(
        student_BC, teacher_1BC, 1.0
    )
    torch.testing.assert_close(both(student_BC, rows_B), expected_B)


def test_an_unlabelled_row_has_only_the_loss_of_the_teacher():
    labelled_NC, rest_NC = logits(3, 4).numpy(), logits(2, 4).numpy()
    rows_B, student_BC = np.array([1, 4]), logits(2, 4)
    _, both = soft(0.25, [labelled_NC, rest_NC])
    losses_B = both(student_BC, rows_B)
    alone_B = SINGLE.of_teachers(
        student_BC,
        torch.from_numpy(np.stack([labelled_NC[1], rest_NC[1]]))[None],
        1.0,
    )
    torch.testing.assert_close(losses_B[1], 0.25 * alone_B[1])
    assert losses_B[0] > 0.25 * alone_B[0]
