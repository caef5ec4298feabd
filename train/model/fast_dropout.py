"""Fast dropout on a CPU, for layers and attention weights.

PyTorch draws one Bernoulli number per element, which takes a large part of a training step on a
CPU. Here an element uses 16 bits of the same generator, so runs are still reproducible from a seed
or a saved generator state. The probability p is rounded to a multiple of 1/65,536.

Shapes: B rows, H heads, T tokens, D channels of a head.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

ATTENTION = "pipework"
VALUES = 1 << 16
LOWEST = -(1 << 15)
WORDS = 4  # 16-bit numbers in one draw of the generator


def drop(x: torch.Tensor, p: float) -> torch.Tensor:
    """Set each element to zero with probability p and scale the rest to keep the mean."""
    dropped = round(p * VALUES)
    if dropped == 0:
        return x
    draws = torch.empty(-(-x.numel() // WORDS), dtype=torch.int64)
    bits = draws.random_(-(1 << 63), None).view(torch.int16)[: x.numel()].view(x.shape)
    mask = (bits > LOWEST + dropped - 1).to(x.dtype)
    return x * mask.mul_(VALUES / max(1, VALUES - dropped))


class FastDropout(nn.Dropout):
    """`nn.Dropout` for CPU tensors."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (the name in torch)
        """Drop elements in training mode; else return the input."""
        return drop(input, self.p) if self.training else input


def use_fast_dropout(model: PreTrainedModel) -> None:
    """Use fast dropout in a model that is trained on a CPU; weights and outputs do not change.

    Attention is replaced as well if the family supports it.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p))
    # The attention of torch upcasts bf16 and draws slowly with dropout, and has a slow backward
    # pass without it.
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():  # noqa: SLF001
        model.set_attn_implementation(ATTENTION)


def attend(
    module: nn.Module,
    query_BHTD: torch.Tensor,
    key_BHTD: torch.Tensor,
    value_BHTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,  # noqa: ANN401  (the interface of transformers)
) -> tuple[torch.Tensor, None]:
    """Return attention as [B, T, H, D], in the type of the queries.

    Follows Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. The attention of
    transformers is used in evaluation mode, for causal attention and for grouped queries. A mask is
    boolean, or a bias that is added.
    """
    supported = query_BHTD.shape[1] == key_BHTD.shape[1] and not getattr(module, "is_causal", False)
    if not (module.training and supported):
        arguments = (module, query_BHTD, key_BHTD, value_BHTD, attention_mask)
        mixed_BTHD, _ = sdpa_attention_forward(*arguments, **options)
        return mixed_BTHD, None
    scale = options.get("scaling") or query_BHTD.shape[-1] ** -0.5
    scores_BHTT = (query_BHTD * scale) @ key_BHTD.transpose(-1, -2)
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        scores_BHTT.add_(attention_mask.to(scores_BHTT.dtype))
    elif attention_mask is not None:
        scores_BHTT.masked_fill_(~attention_mask, torch.finfo(scores_BHTT.dtype).min)
    weights_BHTT = drop(torch.softmax(scores_BHTT, dim=-1), options.get("dropout", 0.0))
    return (weights_BHTT @ value_BHTD).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attend)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
