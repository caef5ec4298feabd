"""Top layers of a pretrained encoder begin anew.

What they have learned is about the pretraining task; on few labelled rows, forgetting it makes
fine-tuning better and its seeds more alike (Zhang et al. 2021, "Revisiting Few-sample BERT
Fine-tuning", https://arxiv.org/abs/2006.05987).
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from pipework.errors import ConfigError
from pipework.train.model.families import stack_of

KNOWN = "_is_hf_initialized"  # the library leaves alone what it has marked so


def reinitialise(encoder: PreTrainedModel, layers: int) -> None:
    """Draw the weights of the top layers and of the pooler as the family draws new ones.

    Args:
        encoder: as a checkpoint gave it.
        layers: how many, from the top; 0 changes nothing.

    Raises:
        ConfigError: it has fewer layers, or uses one at several depths.
    """
    if layers == 0:
        return
    _, stack = stack_of(encoder)
    depth = int(encoder.config.num_hidden_layers)
    if len(stack) < depth:
        message = f"train.reinit_layers: {encoder.config.model_type} shares its layers over depth"
        raise ConfigError(message, "set it to 0: the lower layers would be lost with the top ones")
    if layers > depth:
        message = f"train.reinit_layers is {layers}, and the encoder has {depth} layers"
        raise ConfigError(message, "the published choice is 1 to half of them")
    pooler = getattr(encoder, "pooler", None)
    for module in (*stack[depth - layers :], *([] if pooler is None else [pooler])):
        _draw(encoder, module)


@torch.no_grad()
def _draw(encoder: PreTrainedModel, module: nn.Module) -> None:
    for one in (*module.modules(), *module.parameters()):
        one.__dict__.pop(KNOWN, None)
    for one in module.modules():
        # What a family has no rule for is drawn as torch draws it.
        reset = getattr(one, "reset_parameters", None)
        if callable(reset):
            reset()
    module.apply(encoder._init_weights)  # noqa: SLF001  (the family's rule has no other name)
