import pytest
import torch
from torch.optim import lr_scheduler

from pipework.errors import ConfigError
from pipework.train.config.train import ScheduleName, TrainSettings
from pipework.train.loop.optim import schedule


def factors(steps, per_epoch=10, **options):
    factor = schedule(TrainSettings(**options), steps, per_epoch)
    return [factor(updates) for updates in range(steps)]


def torch_factors(steps, make):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({"schedule": "constant"}, lambda o: lr_scheduler.LambdaLR(o, lambda _: 1.0)),
        ({"schedule": "linear"}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, total_iters=40)),
        ({"schedule": "cosine"}, lambda o: lr_scheduler.CosineAnnealingLR(o, 40)),
        (
            {"schedule": "cosine", "eta_min": 0.2, "learning_rate": 1.0},
            lambda o: lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.2),
        ),
        (
            {"schedule": "cosine_restarts", "cycles": 4, "eta_min": 0.5, "learning_rate": 2.0},
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10, eta_min=0.25),
        ),
        (
            {"schedule": "cosine_restarts", "cycles": 4},
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10),
        ),
        (
            {"schedule": "polynomial", "power": 3},
            lambda o: lr_scheduler.PolynomialLR(o, 40, power=3),
        ),
        ({"schedule": "step", "gamma": 0.1}, lambda o: lr_scheduler.StepLR(o, 10, 0.1)),
        (
            {"schedule": "step", "gamma": 0.1, "step_size": 7},
            lambda o: lr_scheduler.StepLR(o, 7, 0.1),
        ),
        (
            {"schedule": "multi_step", "gamma": 0.1, "milestones": (0.25, 0.75)},
            lambda o: lr_scheduler.MultiStepLR(o, [10, 30], 0.1),
        ),
        (
            {"schedule": "exponential", "gamma": 0.5},
            lambda o: lr_scheduler.ExponentialLR(o, 0.5**0.1),
        ),
    ],
    ids=lambda case: "-".join(map(str, case.values())) if isinstance(case, dict) else "",
)
def test_schedules_without_warmup_equal_those_of_torch(options, make):
    assert factors(40, warmup=0, **options) == pytest.approx(torch_factors(40, make), abs=1e-6)


@pytest.mark.parametrize("name", list(ScheduleName))
def test_the_warmup_is_linear_and_the_factor_is_at_most_1(name):
    rates = factors(100, schedule=name, warmup=0.2)
    assert rates[:20] == pytest.approx([(step + 1) / 21 for step in range(20)])
    assert max(rates) <= 1
    assert min(rates) >= 0


@pytest.mark.parametrize("name", list(ScheduleName))
def test_a_warmup_in_steps_equals_the_same_share(name):
    steps = factors(100, schedule=name, warmup_steps=20)
    assert steps == factors(100, schedule=name, warmup=0.2)
    assert factors(100, schedule=name, warmup_steps=0) == factors(100, schedule=name, warmup=0)


def test_a_linear_schedule_ends_one_step_above_zero():
    assert factors(10, warmup=0.2)[2:] == pytest.approx([1, *(n / 8 for n in range(7, 0, -1))])


def test_a_warmup_of_more_steps_than_the_run_has_is_refused():
    assert factors(10, warmup_steps=10)[-1] == 10 / 11
    with pytest.raises(ConfigError, match=r"train\.warmup_steps is 11, .* has 10 steps") as error:
        factors(10, warmup_steps=11)
    assert "train.warmup" in error.value.hint
