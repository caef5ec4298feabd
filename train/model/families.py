"""Properties of encoder families, read from their configs and modules.

Shapes: B rows, T tokens, H width of the encoder.
"""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from pipework.errors import ConfigError
from pipework.text.padding import Padding

ENCODER_DECODERS = {"bart", "mbart"}  # whose head reads the decoder's state of the last token
XLNET_PAD_TYPE = 3  # the type id that XLNet's tokenizer uses for padding
INITIALIZED = "_is_hf_initialized"  # transformers skips weights with this mark
# The config attributes from which the heads in transformers read their dropout.
HEAD_DROPOUTS = (
    "classifier_dropout",
    "classifier_dropout_prob",
    "seq_classif_dropout",
    "summary_last_dropout",
)


def reads_last(config: PreTrainedConfig) -> bool:
    """Whether the last token represents the text (XLNet), so that padding is on the left."""
    return getattr(config, "summary_type", "first") == "last"


def takes_type_ids(encoder: PreTrainedModel) -> bool:
    """Whether the family uses type ids to distinguish the texts of a pair.

    It does if it embeds two or more types, or if its layers compare types (XLNet).
    """
    embedded = int(getattr(encoder.config, "type_vocab_size", 0) or 0) > 1
    return embedded or _compares_types(encoder)


def padding(encoder: PreTrainedModel) -> Padding:
    """Return how the family pads a batch."""
    return Padding(
        pad_id=int(encoder.config.pad_token_id or 0),
        type_ids=takes_type_ids(encoder),
        pad_type_id=XLNET_PAD_TYPE if _compares_types(encoder) else 0,
        left=reads_last(encoder.config),
    )


def _compares_types(encoder: PreTrainedModel) -> bool:
    return any(name.endswith("seg_embed") for name, _ in encoder.named_parameters())


def set_head_dropout(config: PreTrainedConfig, dropout: float) -> None:
    """Set the dropout of a linear head if the family has a separate setting for it."""
    for name in HEAD_DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, dropout)
    if config.model_type in ("deberta", "deberta-v2"):
        config.cls_dropout = dropout  # read by the model, but not an attribute of its config


def output_activation(config: PreTrainedConfig) -> nn.Module | None:
    """Return the activation that a cross-encoder applies to its score; None for the identity.

    The class `CrossEncoder` of sentence-transformers writes it to the config.

    Raises:
        ConfigError: it is neither the identity nor a sigmoid.
    """
    own = getattr(config, "sentence_transformers", None) or {}
    name = own.get("activation_fn", getattr(config, "sbert_ce_default_activation_function", None))
    module, _, kind = str(name).rpartition(".")
    if module and not module.startswith("torch.nn."):
        kind = ""  # code of its own
    if own and name is None and config.num_labels == 1:
        kind = "Sigmoid"  # the default of CrossEncoder
    match kind:
        case "Sigmoid":
            return nn.Sigmoid()
        case "Identity" | "None":
            return None
        case _:
            message = f"the activation_fn {name} is not supported, expected Sigmoid or Identity"
            raise ConfigError(message, "other activations cannot be imported")


def pooled(encoder: PreTrainedModel, states_BTH: torch.Tensor) -> torch.Tensor | None:
    """Return the output of the pooler of the encoder, or None if it has no pooler."""
    pooler = getattr(encoder, "pooler", None)
    if pooler is None:
        return None
    if isinstance(pooler, nn.Linear):  # ALBERT has the activation in a separate module
        pooler = nn.Sequential(pooler, encoder.pooler_activation)
        states_BTH = states_BTH[:, 0]
    output: torch.Tensor = pooler(states_BTH)
    return output


def layer_stack(encoder: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Return the name and the list of the encoder layers; empty if there are none."""
    lists = (item for item in encoder.named_modules() if isinstance(item[1], nn.ModuleList))
    return next(lists, ("", nn.ModuleList()))


def parameters_by_depth(encoder: PreTrainedModel) -> list[list[nn.Parameter]]:
    """Return the encoder parameters by depth: the embeddings, then each layer.

    A layer that is shared by all depths (ALBERT) is one group. Parameters that all layers share,
    such as relative positions, count as embeddings; a norm after the layers belongs to the last
    layer. The pooler is in no group, because it counts as part of the head.
    """
    path, stack = layer_stack(encoder)
    layers = [list(layer.parameters()) for layer in stack]
    in_layers = {id(parameter) for layer in layers for parameter in layer}
    children = [name for name, _ in encoder.named_children()]
    top = path.partition(".")[0]
    after_layers = children[children.index(top) + 1 :] if top else []
    embeddings: list[nn.Parameter] = []
    after: list[nn.Parameter] = []
    for name, parameter in encoder.named_parameters():
        child = name.partition(".")[0]
        if id(parameter) in in_layers or child == "pooler":
            continue
        (after if child in after_layers else embeddings).append(parameter)
    if layers:
        layers[-1] += after
    return [embeddings, *layers]


def trainable_layers(model: nn.Module, encoder: PreTrainedModel) -> list[list[nn.Parameter]]:
    """Return the trainable parameters of a model by depth: embeddings, each layer, heads.

    The pooler of the encoder counts as part of the head. A group may be empty.
    """
    groups = parameters_by_depth(encoder)
    before_heads = {id(parameter) for group in groups for parameter in group}
    groups.append([weight for weight in model.parameters() if id(weight) not in before_heads])
    return [[weight for weight in group if weight.requires_grad] for group in groups]


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute activations in the backward pass instead of storing them.

    Raises:
        ConfigError: the family does not support it.
    """
    if not model.supports_gradient_checkpointing:
        message = f"{model.config.model_type} has no gradient checkpointing in transformers"
        raise ConfigError(message, "disable it, or lower train.batch_size")
    model.activation_checkpointing_enable({"use_reentrant": False})


def reinitialise(encoder: PreTrainedModel, layers: int) -> None:
    """Re-initialize the top layers and the pooler with the rule of the family.

    Args:
        encoder: the pretrained encoder.
        layers: number of layers from the top; 0 changes nothing.

    Raises:
        ConfigError: the encoder has fewer layers, or shares its layers over depth.
    """
    # The top layers are specialized on the pretraining task; with few labelled rows,
    # re-initializing them gives better results with less variance between seeds (Zhang et al. 2021,
    # "Revisiting Few-sample BERT Fine-tuning", https://arxiv.org/abs/2006.05987).
    if layers == 0:
        return
    _, stack = layer_stack(encoder)
    depth = int(encoder.config.num_hidden_layers)
    if len(stack) < depth:
        message = f"train.reinit_layers: {encoder.config.model_type} shares its layers over depth"
        raise ConfigError(message, "set it to 0: the lower layers would be re-initialized too")
    if layers > depth:
        message = f"train.reinit_layers is {layers}, but the encoder has {depth} layers"
        raise ConfigError(message, "use at most half of the layers")
    pooler = getattr(encoder, "pooler", None)
    for module in (*stack[depth - layers :], *([] if pooler is None else [pooler])):
        _reinitialise_module(encoder, module)


@torch.no_grad()
def _reinitialise_module(encoder: PreTrainedModel, module: nn.Module) -> None:
    for member in (*module.modules(), *module.parameters()):
        member.__dict__.pop(INITIALIZED, None)
    for child in module.modules():
        # Modules without a rule in the family get the default of torch.
        reset = getattr(child, "reset_parameters", None)
        if callable(reset):
            reset()
    module.apply(encoder._init_weights)  # noqa: SLF001  (no public name for the rule of the family)


@dataclass
class EncoderOutput(BaseModelOutputWithPooling):  # type: ignore[misc]
    """The encoder output that the models of transformers read."""

    mems: torch.Tensor | None = None  # XLNet's memory of earlier texts (not used)


class PrecomputedStates(nn.Module):
    """Replaces the encoder of a model by given states; its pooler is still applied."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, so that its parameters are not registered here
        self.config = encoder.config

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> EncoderOutput:
        """Return the states [B, T, H] that were passed as embeddings."""
        pooled_BH = pooled(self._encoder[0], inputs_embeds)
        return EncoderOutput(last_hidden_state=inputs_embeds, pooler_output=pooled_BH)


def without_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the head of `model`, which takes encoder states as `inputs_embeds`."""
    shell = copy.copy(model)
    states = PrecomputedStates(model.base_model)
    shell._modules = model._modules | {model.base_model_prefix: states}  # noqa: SLF001
    return shell
