"""AdamW with decay where it belongs, and the learning rate over the steps."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

DECAYED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Split the parameters by the type of the module that owns them, never by name.

    Weights of linear, convolution and embedding modules decay; biases, norms and what else there
    is do not. A shared weight is listed once.
    """
    owners = [module for module in model.modules() if isinstance(module, DECAYED)]
    decayed = {id(owner.weight): owner.weight for owner in owners if owner.weight.requires_grad}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in decayed]
    return [
        {"params": list(decayed.values()), "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


def adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Return fused AdamW (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101)."""
    groups = parameter_groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


def linear_schedule(optimizer: torch.optim.Optimizer, steps: int, warmup: float) -> LambdaLR:
    """Rise linearly over the share `warmup` of all steps, then fall linearly to zero."""
    rise = round(steps * warmup)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / (rise + 1)
        return max(0.0, (steps - step) / max(1, steps - rise))

    return LambdaLR(optimizer, factor)
