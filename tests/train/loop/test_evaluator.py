import numpy as np
import pytest
import torch

from pipework.progress import Silent
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.train.loop.distributed import World
from pipework.train.loop.evaluator import Judge, settled

SINGLE = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
MULTI = Task(kind=TaskKind.MULTI_LABEL, labels=("a", "b"), metric=Metric.MICRO_F1)
VALUE = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)


class Numbered:
    """Rows whose input is their number; it counts how often each is asked for."""

    def __init__(self, rows):
        self.lengths = np.arange(rows)[::-1] % 5 + 1
        self.asked = np.zeros(rows, int)

    def inputs(self, rows_B):
        self.asked[rows_B] += 1
        return {"x": torch.tensor(rows_B, dtype=torch.float32)}


class Echo(torch.nn.Module):
    """Answers each row with its number."""

    def forward(self, x):
        return torch.stack([x, -x], dim=1)


class Place(World):
    """One of several processes, whose parts are put together by hand."""

    def gather(self, value):
        self.given.append(value)
        return list(self.given) if self.leads else None


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 50])
def test_every_row_is_answered_by_one_process_and_finds_its_place(rows, processes):
    feed, given, found = Numbered(rows), [], None
    for rank in reversed(range(processes)):  # rank 0 comes last, as the gathering waits for all
        place = Place(
            rank=rank, size=processes, local_rank=rank, device=torch.device("cpu"), control=None
        )
        object.__setattr__(place, "given", given)
        judge = Judge(feed, np.zeros(rows), SINGLE, world=place, progress=Silent())
        found = judge.logits(Echo(), None)
    assert feed.asked.tolist() == [1] * rows
    assert found[:, 0].tolist() == list(range(rows))


def test_the_mode_of_the_model_is_what_it_was():
    model = Echo().train()
    judge = Judge(Numbered(4), np.zeros(4, int), SINGLE, world=World.alone(), progress=Silent())
    judge.evaluate(model, None)
    assert model.training


def test_thresholds_are_chosen_for_several_labels_only():
    logits_NC = np.array([[2.0, -1.0], [1.0, -2.0], [-1.0, -3.0]], np.float32)
    truth_NC = np.array([[1, 1], [1, 1], [0, 0]], np.int8)
    task = settled(MULTI, logits_NC, truth_NC)
    assert len(task.thresholds) == 2
    assert task.thresholds[1] < 0.2  # the second label is given far below one half
    assert settled(VALUE, logits_NC[:, :1], np.zeros(3, np.float32)) is VALUE
