import numpy as np
import pytest
import torch

from pipework.progress import NullProgress
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.loop.distributed import World
from pipework.train.loop.evaluator import ClassifierEvaluator

SINGLE = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
MULTI = MultiLabelTask(labels=("a", "b"), metric=Metric.MICRO_F1)
VALUE = RegressionTask(labels=("score",), metric=Metric.PEARSON)


class NumberedRows:
    """Rows whose input is their number; counts how often each row is loaded."""

    def __init__(self, rows):
        self.lengths = np.arange(rows)[::-1] % 5 + 1
        self.loads = np.zeros(rows, int)

    def inputs(self, rows_B):
        self.loads[rows_B] += 1
        return {"x": torch.tensor(rows_B, dtype=torch.float32)}


class RowNumberModel(torch.nn.Module):
    """Returns the number of each row as logits."""

    def forward(self, x):
        return torch.stack([x, -x], dim=1)


class SimulatedWorld(World):
    """One of several simulated processes, which gather their values in a list."""

    def gather(self, value):
        self.gathered.append(value)
        return list(self.gathered) if self.leads else None


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 50])
def test_each_row_is_computed_once_and_results_are_in_order(rows, processes):
    loader, gathered, outputs = NumberedRows(rows), [], None
    for rank in reversed(range(processes)):  # rank 0 is last, because it gathers the values of all
        world = SimulatedWorld(
            rank=rank, size=processes, local_rank=rank, device=torch.device("cpu"), control=None
        )
        object.__setattr__(world, "gathered", gathered)
        evaluator = ClassifierEvaluator(
            loader=loader, truth=np.zeros(rows), task=SINGLE, world=world, progress=NullProgress()
        )
        outputs = evaluator.outputs(RowNumberModel(), None)
    assert loader.loads.tolist() == [1] * rows
    assert outputs.values[:, 0].tolist() == list(range(rows))


def test_the_training_mode_of_the_model_is_restored():
    model = RowNumberModel().train()
    evaluator = ClassifierEvaluator(
        loader=NumberedRows(4),
        truth=np.zeros(4, int),
        task=SINGLE,
        world=World.alone(),
        progress=NullProgress(),
    )
    evaluator.evaluate(model, None)
    assert model.training


def test_thresholds_are_chosen_for_multi_label_tasks_only():
    logits_NC = np.array([[2.0, -1.0], [1.0, -2.0], [-1.0, -3.0]], np.float32)
    truth_NC = np.array([[1, 1], [1, 1], [0, 0]], np.int8)
    task = MULTI.with_thresholds(logits_NC, truth_NC)
    assert len(task.thresholds) == 2
    assert task.thresholds[1] < 0.2  # the best threshold of the second label is far below 0.5
    assert VALUE.with_thresholds(logits_NC[:, :1], np.zeros(3, np.float32)) is VALUE
