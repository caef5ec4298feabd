import math

import pytest
import torch

from pipework.errors import CheckFailedError
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Loss, Metric
from pipework.train.config.train import TrainSettings
from pipework.train.loop import loop
from pipework.train.loop.loop import LogWindow, check_finite, is_better, total_steps
from pipework.train.loop.step import StepResult


class FakeClock:
    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(loop, "time", clock)
    return clock


def step_result(loss=1.0, norm=2.0, *, updated=True):
    return StepResult(loss=torch.tensor(loss), gradient_norm=torch.tensor(norm), updated=updated)


def test_the_rate_excludes_time_outside_training(clock):
    window = LogWindow(10)
    clock.now += 2
    window.add(step_result(), 8)
    clock.now += 100  # an evaluation
    window.restart_clock()
    clock.now += 50  # and a checkpoint
    window.restart_clock()
    clock.now += 2
    window.add(step_result(), 8)
    assert window.summarize() == (1.0, 2.0, 4.0)
    assert window.empty


def test_the_norm_of_an_overflowed_step_is_left_out(clock):
    window = LogWindow(2)
    window.add(step_result(norm=float("inf"), updated=False), 8)
    clock.now += 1
    window.add(step_result(norm=3.0), 8)
    assert window.full
    assert window.summarize()[1] == 3.0


def test_max_steps_limits_the_steps_of_the_epochs():
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


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf)])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run(loss, norm):
    with pytest.raises(CheckFailedError, match="at step 7") as caught:
        check_finite(loss, norm, 7, 0.5)
    assert "lower train.learning_rate (now 0.5)" in caught.value.hint
