import pytest
import torch

from pipework.run_folder.task import Loss, Metric
from pipework.scoring.evaluation import Evaluation
from pipework.train.config.train import TrainSettings
from pipework.train.loop import loop
from pipework.train.loop.loop import LogWindow, is_better, total_steps
from pipework.train.loop.step import Taken


class Clock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    return clock


def taken(loss=1.0, norm=2.0, *, updated=True):
    return Taken(loss=torch.tensor(loss), gradient_norm=torch.tensor(norm), updated=updated)


def test_the_rate_leaves_out_what_was_not_training(clock):
    window = LogWindow(10)
    clock.now += 2
    window.add(taken(), 8)
    clock.now += 100  # an evaluation
    window.restart_clock()
    clock.now += 50  # and a checkpoint
    window.restart_clock()
    clock.now += 2
    window.add(taken(), 8)
    assert window.take() == (1.0, 2.0, 4.0)
    assert window.empty


def test_a_norm_that_overflowed_is_no_norm(clock):
    window = LogWindow(2)
    window.add(taken(norm=float("inf"), updated=False), 8)
    clock.now += 1
    window.add(taken(norm=3.0), 8)
    assert window.full
    assert window.take()[1] == 3.0


def test_the_steps_of_a_run_are_those_of_its_epochs_or_fewer():
    assert total_steps(TrainSettings(epochs=3), 10) == 30
    assert total_steps(TrainSettings(epochs=3, max_steps=7), 10) == 7
    assert total_steps(TrainSettings(epochs=3, max_steps=70), 10) == 30


def test_only_a_better_score_replaces_the_best():
    def scored(score, losses=()):
        return Evaluation(
            rows=1,
            metric=Metric.ACCURACY,
            scores={Metric.ACCURACY: score},
            classes=(),
            confusion=(),
            losses=dict(zip(Loss, losses, strict=False)),
        )

    assert is_better(scored(0.0), None)
    assert is_better(scored(0.6), scored(0.5))
    assert not is_better(scored(0.5), scored(0.5))
    assert not is_better(scored(float("nan")), scored(0.5))
    assert is_better(scored(0.1, (2.0, 0.6)), scored(0.9, (2.0, 0.7)))
    assert not is_better(scored(0.9, (2.2, 0.6)), scored(0.1, (2.0, 0.7)))
