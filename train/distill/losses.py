"""Learning from a teacher's answers: soft labels beside the hard ones.

Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network",
https://arxiv.org/abs/1503.02531. Several teachers are one: their probabilities are averaged.

Shapes: K teachers, B rows of a batch, C classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from pipework.data.examples import Source
from pipework.memory import give_back
from pipework.progress import Progress
from pipework.run_folder.task import TaskKind, no_classifier
from pipework.train.config.train import TrainSettings
from pipework.train.data.batches import Rows
from pipework.train.data.token_cache import located
from pipework.train.distill.teacher import Teacher
from pipework.train.distill.teacher_logits import Logits, teacher_logits
from pipework.train.loop.distributed import World
from pipework.train.loop.losses import Losses


class SoftLabels:
    """The losses of rows that teachers have answered.

    A loss is `soft_weight` times the distance from the teachers' answer, and the rest of 1 times
    the loss of the label; a row without a label has the first part only. For classes the distance
    is the Kullback-Leibler divergence from the mean of the teachers' probabilities, both sides
    softened by the temperature T, times T squared, so that the gradient has the same size for
    every T; for labels that each hold or not it is the mean of theirs; for a number the squared
    distance from the mean of the teachers' values.
    """

    def __init__(
        self,
        hard: Losses,
        answers: Sequence[Sequence[Logits]],
        *,
        labelled: int,
        kind: TaskKind,
        settings: TrainSettings,
    ) -> None:
        """Take over the hard losses of the first `labelled` rows.

        Args:
            hard: what the labels give.
            answers: for each teacher its logits [N, C] by file; the files' rows follow each other.
            labelled: rows with a label; all others come behind them.
            kind: of the task.
            settings: temperature and weight.
        """
        self._hard = hard
        self._answers = answers
        self._labelled = labelled
        self._kind = kind
        self._temperature = settings.temperature
        self._weight = settings.soft_weight

    def __call__(self, logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        """Return the loss of each row, float32 [B]."""
        taught_KBC = torch.from_numpy(self._taught(rows_B)).to(logits_BC.device)
        temperature = self._temperature
        soft_B = distances(logits_BC.float(), taught_KBC, self._kind, temperature)
        has_B = rows_B < self._labelled
        hard_B = self._hard(logits_BC, np.where(has_B, rows_B, 0))
        # Of a row without a label the loss of another's label was computed, and counts nothing.
        counts_B = torch.from_numpy(has_B.astype(np.float32)).to(logits_BC.device)
        return self._weight * soft_B + (1 - self._weight) * counts_B * hard_B

    def _taught(self, rows_B: Rows) -> NDArray[np.float32]:
        return np.stack(
            [
                np.stack([files[file][row] for file, row in located(list(map(len, files)), rows_B)])
                for files in self._answers
            ]
        )


def distances(
    logits_BC: torch.Tensor, taught_KBC: torch.Tensor, kind: TaskKind, temperature: float
) -> torch.Tensor:
    """Return how far each row's answer is from its teachers', float32 [B], 0 where they agree."""
    student_BC, teachers_KBC = logits_BC / temperature, taught_KBC / temperature
    match kind:
        case TaskKind.SINGLE_LABEL:
            wanted_BC = teachers_KBC.softmax(dim=-1).mean(dim=0)
            found_BC = student_BC.log_softmax(dim=-1)
            apart_BC = functional.kl_div(found_BC, wanted_BC, reduction="none")
            return apart_BC.sum(dim=1) * temperature**2
        case TaskKind.MULTI_LABEL:
            wanted_BC = teachers_KBC.sigmoid().mean(dim=0)
            crossed_BC = functional.binary_cross_entropy_with_logits(
                student_BC, wanted_BC, reduction="none"
            )
            none_BC = 1 - wanted_BC
            own_BC = torch.xlogy(wanted_BC, wanted_BC) + torch.xlogy(none_BC, none_BC)
            return (crossed_BC + own_BC).mean(dim=1) * temperature**2
        case TaskKind.REGRESSION:
            wanted_B = taught_KBC[:, :, 0].mean(dim=0)
            return functional.mse_loss(logits_BC[:, 0], wanted_B, reduction="none")
        case TaskKind.PRETRAIN:
            raise no_classifier()


def answers_of(
    teachers: Sequence[Teacher], sources: Sequence[Source], world: World, progress: Progress
) -> tuple[tuple[Logits, ...], ...]:
    """Return the logits of each teacher by file; one process a machine computes what lacks.

    Raises:
        PipeError: as `teacher_logits`.
    """
    found = world.first_on_each_machine(
        lambda: tuple(
            tuple(teacher_logits(teacher, source, world.device, progress) for source in sources)
            for teacher in teachers
        )
    )
    give_back()  # the teachers' weights
    return found
