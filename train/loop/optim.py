"""Optimizers and learning-rate schedules.

A schedule is a factor of the configured rate that depends only on the number of updates, so a
resumed run needs no scheduler state.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pipework.errors import ConfigError
from pipework.train.config.train import OptimizerName, ScheduleName, TrainSettings

DECAYED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.LSTM, nn.GRU)
Groups = list[dict[str, Any]]
Schedule = Callable[[int], float]


def parameter_groups(
    model: nn.Module, layers: Sequence[Sequence[nn.Parameter]], settings: TrainSettings
) -> Groups:
    """Split the trainable parameters by weight decay and by depth.

    Weight decay applies to the weights of linear, convolution, recurrent and embedding modules, and
    to the three-dimensional projections [H, heads, width of a head] of XLNet, which are not in a
    module of their own. It does not apply to biases, norms and other parameters.

    The head has the full learning rate, and each layer `layer_decay` times the rate of the layer
    above it, down to the embeddings (discriminative fine-tuning, Howard and Ruder 2018,
    https://arxiv.org/abs/1801.06146; ELECTRA, Clark et al. 2020, https://arxiv.org/abs/2003.10555,
    and BEiT, Bao et al. 2021, https://arxiv.org/abs/2106.08254, do the same). A layer
    that is shared by all depths (ALBERT) counts once.

    Args:
        model: the whole model.
        layers: its parameters from the embeddings to the head.
        settings: learning rate, weight decay and layer decay.

    Returns:
        Parameter groups of torch.optim, each with a `scale`: its factor of the learning rate.
    """
    decayed = {id(weight) for weight in _decayed(model)}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for depth, layer in enumerate(layers):
        scale = settings.layer_decay ** (len(layers) - 1 - depth)
        trained = [parameter for parameter in layer if parameter.requires_grad]
        for decay, weight_decay in ((True, settings.weight_decay), (False, 0.0)):
            chosen = [p for p in trained if (id(p) in decayed) is decay]
            if chosen:
                new = {"params": [], "weight_decay": weight_decay, "scale": scale}
                groups.setdefault((weight_decay, scale), new)["params"] += chosen
    return list(groups.values())


def _decayed(model: nn.Module) -> Iterable[nn.Parameter]:
    for module in model.modules():
        own = module.named_parameters(recurse=False)
        if isinstance(module, DECAYED):
            yield from (parameter for name, parameter in own if name.startswith("weight"))
        else:
            yield from (parameter for _, parameter in own if parameter.ndim == len("HND"))


def make_optimizer(groups: Groups, settings: TrainSettings) -> Optimizer:
    """Return the optimizer; its state is on the CPU if the settings say so."""
    if settings.optimizer_on_cpu:
        return CpuOffloadOptimizer(
            groups, settings.learning_rate, lambda copies: _optimizer(copies, settings)
        )
    return _optimizer(groups, settings)


def _optimizer(groups: Groups, settings: TrainSettings) -> Optimizer:
    rate = settings.learning_rate
    match settings.optimizer:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(
                groups, lr=rate, betas=settings.betas, eps=settings.eps, fused=True
            )
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum)
        case OptimizerName.ADAFACTOR:
            return torch.optim.Adafactor(groups, lr=rate)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the head; other groups are scaled by their `scale`."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


class CpuOffloadOptimizer(Optimizer):
    """An optimizer with a copy of the weights and its state in main memory.

    Gradients are copied to the CPU and updated weights back to the device, which then holds only
    weights and gradients (Ren et al. 2021, https://arxiv.org/abs/2101.06840).
    """

    def __init__(self, groups: Groups, rate: float, make: Callable[[Groups], Optimizer]) -> None:
        """Copy the weights; `make` returns the optimizer of the copies."""
        super().__init__(groups, {"lr": rate})
        copies = [{**group, "params": [_copy(p) for p in group["params"]]} for group in groups]
        self._inner = make(copies)
        self.state = self._inner.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Copy the gradients to the CPU, update the copies, and copy the weights back."""
        del closure  # part of the interface, not supported
        for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner["lr"] = outer["lr"]
        for parameter, copy in self._pairs():
            gradient = parameter.grad
            copy.grad = None if gradient is None else gradient.to("cpu")
        self._inner.step()
        for parameter, copy in self._pairs():
            parameter.copy_(copy)

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """Yield each parameter with its copy on the CPU."""
        for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            yield from zip(outer["params"], inner["params"], strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer on the CPU."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, and copy the current weights of the model."""
        self._inner.load_state_dict(state_dict)
        self.state = self._inner.state
        with torch.no_grad():
            for parameter, copy in self._pairs():
                copy.copy_(parameter)


def _copy(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to("cpu", copy=True))


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
