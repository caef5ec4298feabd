"""The optimizer: decay where it belongs, lower rates below, state where there is room."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from pipework.train.config.train import OptimizerName, TrainSettings

DECAYED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.LSTM, nn.GRU)
Groups = list[dict[str, Any]]


def parameter_groups(
    model: nn.Module, layers: Sequence[Sequence[nn.Parameter]], settings: TrainSettings
) -> Groups:
    """Split what is trained by decay and by depth.

    Weights of linear, convolution, recurrent and embedding modules decay, and projections that a
    family keeps by head, [H, heads, width of a head], in no module of their own (XLNet); biases,
    norms and what else there is do not. That is never told by name.

    The head learns at the full rate, and each layer at `layer_decay` times the rate of the one
    above it, down to the embeddings (discriminative fine-tuning, Howard and Ruder 2018,
    https://arxiv.org/abs/1801.06146; ELECTRA, Clark et al. 2020, https://arxiv.org/abs/2003.10555,
    and BEiT, Bao et al. 2021, https://arxiv.org/abs/2106.08254, decay likewise). A weight that is
    used again at every depth (ALBERT) is one layer, listed once.

    Args:
        model: all of it.
        layers: its parameters from the embeddings to the head.
        settings: rate, decay and layer decay.

    Returns:
        Groups of torch.optim, each with a `scale`: its share of the learning rate.
    """
    decayed = {id(weight) for weight in _decayed(model)}
    groups: Groups = []
    for depth, layer in enumerate(layers):
        scale = settings.layer_decay ** (len(layers) - 1 - depth)
        trained = [parameter for parameter in layer if parameter.requires_grad]
        for decay, weight_decay in ((True, settings.weight_decay), (False, 0.0)):
            chosen = [p for p in trained if (id(p) in decayed) is decay]
            if chosen:
                groups.append({"params": chosen, "weight_decay": weight_decay, "scale": scale})
    return _merged(groups)


def _decayed(model: nn.Module) -> Iterable[nn.Parameter]:
    for module in model.modules():
        own = module.named_parameters(recurse=False)
        if isinstance(module, DECAYED):
            yield from (parameter for name, parameter in own if name.startswith("weight"))
        else:
            yield from (parameter for _, parameter in own if parameter.ndim == len("HND"))


def _merged(groups: Groups) -> Groups:
    merged: dict[tuple[float, float], dict[str, Any]] = {}
    for group in groups:
        key = (group["weight_decay"], group["scale"])
        merged.setdefault(key, {**group, "params": []})["params"].extend(group["params"])
    return list(merged.values())


def make_optimizer(groups: Groups, settings: TrainSettings) -> Optimizer:
    """Return the optimizer over the groups, its state on the CPU if that is asked for."""
    if settings.optimizer_on_cpu:
        return OnCpu(groups, settings.learning_rate, lambda copies: _optimizer(copies, settings))
    return _optimizer(groups, settings)


def _optimizer(groups: Groups, settings: TrainSettings) -> Optimizer:
    rate = settings.learning_rate
    match settings.optimizer:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(groups, lr=rate, betas=settings.betas, fused=True)
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum)
        case OptimizerName.ADAFACTOR:
            return torch.optim.Adafactor(groups, lr=rate)


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the head; the layers below have their share of it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


class OnCpu(Optimizer):
    """An optimizer whose weights and state are copies in main memory.

    Gradients go there, changed weights come back: slower by the two copies, and the device holds
    weights and gradients alone (Ren et al. 2021, https://arxiv.org/abs/2101.06840).
    """

    def __init__(self, groups: Groups, rate: float, make: Callable[[Groups], Optimizer]) -> None:
        """Copy the weights; `make` returns the optimizer over groups of the copies."""
        super().__init__(groups, {"lr": rate})
        copies = [{**group, "params": [_copy(p) for p in group["params"]]} for group in groups]
        self._inner = make(copies)
        self.state = self._inner.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the gradients, change the copies, and move them back."""
        del closure  # of the interface; nothing here is computed twice
        for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner["lr"] = outer["lr"]
            for parameter, copy in zip(outer["params"], inner["params"], strict=True):
                gradient = parameter.grad
                copy.grad = None if gradient is None else gradient.to("cpu")
        self._inner.step()
        for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            for parameter, copy in zip(outer["params"], inner["params"], strict=True):
                parameter.copy_(copy)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the copies' optimizer."""
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, and take over the weights as they are now."""
        self._inner.load_state_dict(state_dict)
        self.state = self._inner.state
        with torch.no_grad():
            for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
                for parameter, copy in zip(outer["params"], inner["params"], strict=True):
                    copy.copy_(parameter)


def _copy(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().to("cpu", copy=True))
