"""A standard classifier whose encoder is left out: its head reads states that are given.

Shapes: B rows, T tokens, H width of the encoder.
"""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from pipework.train.model.families import pooled


@dataclass
class Given(BaseModelOutputWithPooling):  # type: ignore[misc]
    """What the standard models read of their encoder's output."""

    mems: torch.Tensor | None = None  # XLNet's memory of earlier texts, which is not used


class GivenStates(nn.Module):
    """Stands where the encoder stood; the encoder's own pooler still works on the states."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        """Stand in for an encoder."""
        super().__init__()
        self._encoder = (encoder,)  # in a tuple: its parameters are not this module's
        self.config = encoder.config

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> Given:
        """Return the states [B, T, H] that came in place of embeddings."""
        made = pooled(self._encoder[0], inputs_embeds)
        return Given(last_hidden_state=inputs_embeds, pooler_output=made)


def without_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model that shares the head of `model` and computes it from `inputs_embeds`."""
    shell = copy.copy(model)
    given = GivenStates(model.base_model)
    shell._modules = model._modules | {model.base_model_prefix: given}  # noqa: SLF001
    return shell
