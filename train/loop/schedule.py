"""The learning rate over the steps, as a factor of the configured one.

A factor depends on the number of updates done and on nothing else, so that a run which goes on
after an interruption needs no state of its own for it.
"""

import math
from collections.abc import Callable

from pipework.train.config.train import ScheduleName, TrainSettings

Schedule = Callable[[int], float]


def schedule(settings: TrainSettings, steps: int, per_epoch: int) -> Schedule:
    """Return the factor for each number of updates done, from 0 to `steps` - 1.

    It rises linearly over the share `warmup` of all steps, then goes as the schedule says. Cosine
    and its restarts follow Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983.

    Args:
        settings: name and numbers of the schedule.
        steps: of the whole run.
        per_epoch: steps of an epoch, for those that change with it.
    """
    rise = round(steps * settings.warmup)

    def factor(updates: int) -> float:
        if updates < rise:
            return (updates + 1) / (rise + 1)
        done = min(1.0, (updates - rise) / max(1, steps - rise))
        falls = _falls(settings, updates, steps, per_epoch)
        return _height(settings, done) * float(settings.gamma**falls)

    return factor


def _height(settings: TrainSettings, done: float) -> float:
    """Return the height of a smooth schedule after a share of its steps."""
    match settings.schedule:
        case ScheduleName.LINEAR:
            return 1 - done
        case ScheduleName.COSINE:
            return _cosine(done)
        case ScheduleName.COSINE_RESTARTS:
            return _cosine(settings.cycles * done % 1)
        case ScheduleName.POLYNOMIAL:
            return float((1 - done) ** settings.power)
        case _:
            return 1.0


def _falls(settings: TrainSettings, updates: int, steps: int, per_epoch: int) -> float:
    """Return how often a schedule that falls by `gamma` has done so."""
    match settings.schedule:
        case ScheduleName.STEP:
            return updates // per_epoch
        case ScheduleName.MULTI_STEP:
            return sum(updates >= milestone * steps for milestone in settings.milestones)
        case ScheduleName.EXPONENTIAL:
            return updates / per_epoch
        case _:
            return 0


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2
