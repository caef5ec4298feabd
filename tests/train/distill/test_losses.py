"""A student learns what its teachers answer."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from pipework.run_folder.task import TaskKind
from pipework.train.config.train import TrainSettings
from pipework.train.distill.losses import SoftLabels, distances
from pipework.train.loop.losses import HardLabels, Objective

KINDS = [kind for kind in TaskKind if kind is not TaskKind.PRETRAIN]


def logits(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def width(kind):
    return 1 if kind is TaskKind.REGRESSION else 4


@pytest.mark.parametrize("kind", KINDS)
def test_who_answers_as_the_teacher_does_has_nothing_to_learn(kind):
    taught_1BC = logits(1, 5, width(kind))
    found_BC = taught_1BC[0].clone().requires_grad_()
    losses_B = distances(found_BC, taught_1BC, kind, 3.0)
    assert losses_B.detach().abs().max() < 1e-6
    losses_B.sum().backward()
    assert found_BC.grad.abs().max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_any_other_answer_costs_more_and_learning_ends_at_the_teachers_mean(kind):
    taught_KBC = logits(3, 5, width(kind))
    student_BC = torch.zeros(5, width(kind), requires_grad=True)
    optimizer = torch.optim.Adam([student_BC], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        distances(student_BC, taught_KBC, kind, 2.0).sum().backward()
        optimizer.step()
    match kind:
        case TaskKind.SINGLE_LABEL:
            found, wanted = (student_BC / 2).softmax(1), (taught_KBC / 2).softmax(2).mean(0)
        case TaskKind.MULTI_LABEL:
            found, wanted = (student_BC / 2).sigmoid(), (taught_KBC / 2).sigmoid().mean(0)
        case TaskKind.REGRESSION:
            found, wanted = student_BC, taught_KBC.mean(0)
    torch.testing.assert_close(found.detach(), wanted, atol=2e-3, rtol=0)


@pytest.mark.parametrize("kind", [TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL])
def test_gradients_have_the_same_size_at_every_high_temperature(kind):
    """Soft labels give gradients of 1 over T squared (Hinton et al.), which is multiplied away."""

    def gradient(temperature):
        student_BC = logits(5, 4).requires_grad_()
        distances(student_BC, logits(1, 5, 4), kind, temperature).sum().backward()
        return float(student_BC.grad.norm())

    assert gradient(100.0) == pytest.approx(gradient(10.0), rel=0.1)


def test_the_loss_is_the_reference_formula():
    student_BC, taught_1BC = logits(6, 4), logits(1, 6, 4)
    expected = (
        functional.kl_div(
            (student_BC / 2).log_softmax(1), (taught_1BC[0] / 2).softmax(1), reduction="batchmean"
        )
        * 4
    )
    found_B = distances(student_BC, taught_1BC, TaskKind.SINGLE_LABEL, 2.0)
    torch.testing.assert_close(found_B.mean(), expected)


def soft(weight, files, labelled=3):
    truth_N = np.array([0, 1, 2], np.int32)
    settings = TrainSettings(temperature=1.0, soft_weight=weight)
    hard = HardLabels(Objective(TaskKind.SINGLE_LABEL), truth_N)
    return hard, SoftLabels(
        hard, [files], labelled=labelled, kind=TaskKind.SINGLE_LABEL, settings=settings
    )


def test_weights_are_of_soft_and_hard_labels():
    taught_NC = logits(3, 4).numpy()
    rows_B, student_BC = np.array([2, 0]), logits(2, 4)
    hard, both = soft(0.25, [taught_NC])
    taught_1BC = torch.from_numpy(taught_NC[rows_B])[None]
    expected_B = 0.75 * hard(student_BC, rows_B) + 0.25 * distances(
        student_BC, taught_1BC, TaskKind.SINGLE_LABEL, 1.0
    )
    torch.testing.assert_close(both(student_BC, rows_B), expected_B)


def test_a_row_without_a_label_is_learned_from_the_teacher_alone():
    labelled_NC, rest_NC = logits(3, 4).numpy(), logits(2, 4).numpy()
    rows_B, student_BC = np.array([1, 4]), logits(2, 4)
    _, both = soft(0.25, [labelled_NC, rest_NC])
    losses_B = both(student_BC, rows_B)
    alone_B = distances(
        student_BC,
        torch.from_numpy(np.stack([labelled_NC[1], rest_NC[1]]))[None],
        TaskKind.SINGLE_LABEL,
        1.0,
    )
    torch.testing.assert_close(losses_B[1], 0.25 * alone_B[1])
    assert losses_B[0] > 0.25 * alone_B[0]
