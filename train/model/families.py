"""What training needs to know of an encoder's family, read from its config and its modules.

Shapes: B rows, T tokens, H width of the encoder.
"""

from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from pipework.errors import ConfigError
from pipework.text.padding import Padding

XLNET_PAD_TYPE = 3  # types are only compared with each other; XLNet's tokenizer pads with this one
# Under these names the heads of the library read their dropout.
HEAD_DROPOUTS = (
    "classifier_dropout",
    "classifier_dropout_prob",
    "seq_classif_dropout",
    "summary_last_dropout",
)


def reads_last(config: PreTrainedConfig) -> bool:
    """Whether the last token stands for the text (XLNet), so that padding goes to the left."""
    return getattr(config, "summary_type", "first") == "last"


def takes_type_ids(encoder: PreTrainedModel) -> bool:
    """Whether the family tells the first text of a pair from the second by type ids.

    It does where it embeds two types or more, and where its layers compare types (XLNet).
    """
    embedded = int(getattr(encoder.config, "type_vocab_size", 0) or 0) > 1
    return embedded or _compares_types(encoder)


def padding(encoder: PreTrainedModel) -> Padding:
    """Return how the family fills up a batch."""
    return Padding(
        pad_id=int(encoder.config.pad_token_id or 0),
        type_ids=takes_type_ids(encoder),
        pad_type_id=XLNET_PAD_TYPE if _compares_types(encoder) else 0,
        left=reads_last(encoder.config),
    )


def _compares_types(encoder: PreTrainedModel) -> bool:
    return any(name.endswith("seg_embed") for name, _ in encoder.named_parameters())


def set_head_dropout(config: PreTrainedConfig, dropout: float) -> None:
    """Set the dropout of a linear head where the family has one apart from the encoder's."""
    for name in HEAD_DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, dropout)
    if config.model_type in ("deberta", "deberta-v2"):
        config.cls_dropout = dropout  # read, but not listed


def pooled(encoder: PreTrainedModel, states_BTH: torch.Tensor) -> torch.Tensor | None:
    """Return what the encoder's own pooler makes of its last states, or None if it has none."""
    pooler = getattr(encoder, "pooler", None)
    if pooler is None:
        return None
    if isinstance(pooler, nn.Linear):  # ALBERT keeps the activation beside the layer
        pooler = nn.Sequential(pooler, encoder.pooler_activation)
        states_BTH = states_BTH[:, 0]
    made: torch.Tensor = pooler(states_BTH)
    return made


def stack_of(encoder: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the encoder's layers, with the name that they have in it; empty where it has none."""
    lists = (one for one in encoder.named_modules() if isinstance(one[1], nn.ModuleList))
    return next(lists, ("", nn.ModuleList()))


def depths(encoder: PreTrainedModel) -> list[list[nn.Parameter]]:
    """Return the encoder's parameters by depth: what lies under the layers first, then each layer.

    A layer that is used again at every depth (ALBERT) is one group. What all layers share, such as
    relative positions, counts as lying under them; a norm behind them belongs to the last. The
    pooler reads the last states, as a head does, and is in no group.
    """
    path, stack = stack_of(encoder)
    layers = [list(layer.parameters()) for layer in stack]
    inside = {id(parameter) for layer in layers for parameter in layer}
    children = [name for name, _ in encoder.named_children()]
    top = path.partition(".")[0]
    behind = children[children.index(top) + 1 :] if top else []
    under: list[nn.Parameter] = []
    above: list[nn.Parameter] = []
    for name, parameter in encoder.named_parameters():
        child = name.partition(".")[0]
        if id(parameter) in inside or child == "pooler":
            continue
        (above if child in behind else under).append(parameter)
    if layers:
        layers[-1] += above
    return [under, *layers]


def of_head(model: nn.Module, encoder: PreTrainedModel) -> Iterator[nn.Parameter]:
    """Yield the parameters behind the encoder's last states, its pooler among them."""
    states = {id(parameter) for group in depths(encoder) for parameter in group}
    yield from (one for one in model.parameters() if id(one) not in states)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Compute activations again in the backward pass instead of keeping them.

    Raises:
        ConfigError: the family's code cannot.
    """
    if not model.supports_gradient_checkpointing:
        message = f"{model.config.model_type} has no gradient checkpointing in transformers"
        raise ConfigError(message, "switch it off, or lower train.batch_size")
    model.activation_checkpointing_enable({"use_reentrant": False})


# What they have learned is about the pretraining task; on few labelled rows, forgetting it makes
# fine-tuning better and its seeds more alike (Zhang et al. 2021, "Revisiting Few-sample BERT
# Fine-tuning", https://arxiv.org/abs/2006.05987).

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
