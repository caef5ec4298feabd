"""The learning rate over the steps, as a factor of the configured one.

A factor depends on the number of updates done and on nothing else, so that a run which goes on
after an interruption needs no state of its own for it.
"""

import math
from collections.abc import Callable

from train.train_settings import ScheduleName, TrainSettings

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
    after = _after(settings, steps, per_epoch, rise)

    def factor(updates: int) -> float:
        return (updates + 1) / (rise + 1) if updates < rise else after(updates)

    return factor


def _after(settings: TrainSettings, steps: int, per_epoch: int, rise: int) -> Schedule:
    def done(updates: int) -> float:
        return min(1.0, (updates - rise) / max(1, steps - rise))

    match settings.schedule:
        case ScheduleName.CONSTANT:
            return lambda _: 1.0
        case ScheduleName.LINEAR:
            return lambda updates: 1 - done(updates)
        case ScheduleName.COSINE:
            return lambda updates: _cosine(done(updates))
        case ScheduleName.COSINE_RESTARTS:
            return lambda updates: _cosine(_fraction(settings.cycles * done(updates)))
        case ScheduleName.POLYNOMIAL:
            return lambda updates: (1 - done(updates)) ** settings.power
        case ScheduleName.STEP:
            return lambda updates: settings.gamma ** (updates // per_epoch)
        case ScheduleName.MULTI_STEP:
            passed = settings.milestones
            return lambda updates: settings.gamma ** sum(updates >= m * steps for m in passed)
        case ScheduleName.EXPONENTIAL:
            return lambda updates: settings.gamma ** (updates / per_epoch)


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _fraction(cycles: float) -> float:
    return cycles - math.floor(cycles)
