"""Knowledge distillation losses: the soft labels of teachers in addition to the hard labels.

Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network",
https://arxiv.org/abs/1503.02531. The probabilities of several teachers are averaged.

Shapes: K teachers, B rows of a batch, C classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.machine import collect_and_trim
from pipework.progress import Progress
from pipework.train.config.train import TrainSettings
from pipework.train.data.batches import Rows
from pipework.train.data.token_cache import locate_rows
from pipework.train.distill.teacher import Logits, Teacher, teacher_logits
from pipework.train.loop.distributed import World
from pipework.train.loop.losses import Losses
from pipework.train.loop.to_device import to_device
from pipework.train.objectives import Objective


def distillation_losses(
    label_losses: Losses,
    teacher_logits: Sequence[Sequence[Logits]],
    *,
    labelled: int,
    objective: Objective,
    settings: TrainSettings,
) -> Losses:
    """Return the losses with respect to labels and teachers.

    A loss is `soft_weight` times the distillation loss plus (1 - `soft_weight`) times the loss of
    the label; a row without a label has the first term only. See `Objective`.

    Args:
        label_losses: the losses with respect to the labels.
        teacher_logits: for each teacher its logits [N, C] by file, in the order of the rows.
        labelled: number of rows with a label; they precede the unlabelled rows.
        objective: the losses of the kind of task.
        settings: temperature and weight.
    """
    weight = settings.soft_weight

    def losses(logits_BC: torch.Tensor, rows_B: Rows) -> torch.Tensor:
        teachers = [_rows_of(files, rows_B) for files in teacher_logits]
        teacher_KBC = to_device(np.stack(teachers), logits_BC.device)
        soft_B = objective.of_teachers(logits_BC, teacher_KBC, settings.temperature)
        labelled_B = rows_B < labelled
        hard_B = label_losses(logits_BC, np.where(labelled_B, rows_B, 0))
        # Rows without a label were computed with the label of row 0, which gets weight 0 here.
        label_weight_B = to_device(labelled_B.astype(np.float32), logits_BC.device)
        return weight * soft_B + (1 - weight) * label_weight_B * hard_B

    return losses


def _rows_of(files: Sequence[Logits], rows_B: Rows) -> NDArray[np.float32]:
    locations = locate_rows(list(map(len, files)), rows_B)
    return np.stack([files[file][row] for file, row in locations])


def all_teacher_logits(
    teachers: Sequence[Teacher], sources: Sequence[Source], world: World, progress: Progress
) -> tuple[tuple[Logits, ...], ...]:
    """Return the logits of each teacher by file; one process per machine computes missing logits.

    Raises:
        PipeError: as `teacher_logits`.
    """
    logits = world.first_on_each_machine(
        lambda: tuple(
            tuple(teacher_logits(teacher, source, world.device, progress) for source in sources)
            for teacher in teachers
        )
    )
    collect_and_trim()  # frees the weights of the teachers
    return logits
