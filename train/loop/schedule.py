"""Learning-rate schedules, as factors of the configured rate.

A factor depends only on the number of updates, so a resumed run needs no scheduler state.
"""

import math
from collections.abc import Callable

from pipework.errors import ConfigError
from pipework.train.config.train import ScheduleName, TrainSettings

Schedule = Callable[[int], float]


def schedule(settings: TrainSettings, steps: int, per_epoch: int) -> Schedule:
    """Return the function from the number of updates, 0 to `steps` - 1, to the factor.

    The factor rises linearly over the warmup, then follows the schedule. Cosine and its restarts
    follow Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983.

    Args:
        settings: name and parameters of the schedule.
        steps: number of steps of the run.
        per_epoch: steps per epoch, for schedules that change per epoch.

    Raises:
        ConfigError: the warmup has more steps than the run.
    """
    warmup_steps = settings.warmup_steps
    if warmup_steps is None:
        warmup_steps = round(steps * settings.warmup)
    if warmup_steps > steps:
        message = f"train.warmup_steps is {warmup_steps:,}, and the run has {steps:,} steps"
        raise ConfigError(message, "lower it, or set train.warmup, a share of the steps, instead")

    def factor(updates: int) -> float:
        if updates < warmup_steps:
            return (updates + 1) / (warmup_steps + 1)
        done = min(1.0, (updates - warmup_steps) / max(1, steps - warmup_steps))
        decays = _decays(settings, updates, steps, per_epoch)
        return _smooth_factor(settings, done) * float(settings.gamma**decays)

    return factor


def _smooth_factor(settings: TrainSettings, done: float) -> float:
    """Return the factor of a smooth schedule after the share `done` of its steps."""
    match settings.schedule:
        case ScheduleName.LINEAR:
            return 1 - done
        case ScheduleName.COSINE:
            return _cosine(settings, done)
        case ScheduleName.COSINE_RESTARTS:
            return _cosine(settings, settings.cycles * done % 1)
        case ScheduleName.POLYNOMIAL:
            return float((1 - done) ** settings.power)
        case _:
            return 1.0


def _decays(settings: TrainSettings, updates: int, steps: int, per_epoch: int) -> float:
    """Return the number of decays by `gamma` so far."""
    match settings.schedule:
        case ScheduleName.STEP:
            return updates // (settings.step_size or per_epoch)
        case ScheduleName.MULTI_STEP:
            return sum(updates >= milestone * steps for milestone in settings.milestones)
        case ScheduleName.EXPONENTIAL:
            return updates / per_epoch
        case _:
            return 0


def _cosine(settings: TrainSettings, done: float) -> float:
    lowest = settings.eta_min / settings.learning_rate
    return lowest + (1 - lowest) * (1 + math.cos(math.pi * done)) / 2
