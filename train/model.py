"""An encoder with a head: a checkpoint that AutoModel opens, or a preset from scratch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from pipework.errors import ConfigError
from train.model_settings import ModelSettings, Preset

SIZES = {Preset.TINY: (2, 128), Preset.MINI: (4, 256), Preset.SMALL: (4, 512)}
HEAD_WIDTH = 64


class Classifier(nn.Module):
    """An encoder with a head, behind one signature for every family and head.

    Attributes:
        config: the encoder's, as transformers has it.
        classes: C, the number of logits.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Take over a standard model for sequence classification, whose head is linear."""
        super().__init__()
        self.model = model
        self.config = model.config
        self.classes = int(model.config.num_labels)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits [B, C]; all inputs are int64 [B, T], `entity_spans` int64 [B, 4]."""
        del entity_spans  # a linear head reads the marks in the text
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).logits
        return logits

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def encoder(self) -> nn.Module:
        """The encoder without the head."""
        encoder: nn.Module = self.model.base_model
        return encoder

    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and config to a folder that `open_checkpoint` opens."""
        self.model.save_pretrained(folder)


def build(settings: ModelSettings, tokenizer: Tokenizer, labels: Sequence[str]) -> Classifier:
    """Return a model in float32 whose logits are in the order of `labels`.

    Raises:
        ConfigError: the checkpoint cannot be opened, or does not fit the tokenizer or the length.
    """
    transformers_logging.set_verbosity_error()  # a new head is what fine-tuning means
    transformers_logging.disable_progress_bar()
    names: dict[str, Any] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if settings.preset is not None:
        config = _preset(settings, settings.preset, tokenizer, names)
        return Classifier(BertForSequenceClassification(config))
    return Classifier(_named(settings, str(settings.name), tokenizer, names))


def open_checkpoint(folder: Path, attention: str = "sdpa") -> Classifier:
    """Load a run's checkpoint afresh, in float32 and in evaluation mode.

    `attention` is "sdpa" or, where a graph is traced, "eager".
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    return Classifier(model).eval()


def uses_type_ids(model: Classifier) -> bool:
    """Whether the family tells the first text of a pair from the second by type ids."""
    return int(getattr(model.config, "type_vocab_size", 0) or 0) > 1


def _preset(
    settings: ModelSettings, preset: Preset, tokenizer: Tokenizer, names: dict[str, Any]
) -> BertConfig:
    layers, width = SIZES[preset]
    return BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        intermediate_size=4 * width,
        max_position_embeddings=settings.max_length,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        pad_token_id=tokenizer.token_to_id("[PAD]"),
        **names,
    )


def _named(
    settings: ModelSettings, name: str, tokenizer: Tokenizer, names: dict[str, Any]
) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(name, **names)
        if hasattr(config, "classifier_dropout"):
            config.classifier_dropout = settings.dropout
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        message = f"model.name {name!r} cannot be opened: {str(error).splitlines()[0]}"
        raise ConfigError(message, "expected a hub id or a folder with config.json") from error
    _check_loaded(name, model, loading)
    _check_fit(settings, name, tokenizer, model)
    return model


def _check_loaded(name: str, model: PreTrainedModel, loading: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of which the encoder got nothing, or a part only."""
    lost = {str(key) for key in loading["missing_keys"]}
    lost |= {str(key[0] if isinstance(key, tuple) else key) for key in loading["mismatched_keys"]}
    encoder = sorted(key for key in lost if key.startswith(f"{model.base_model_prefix}."))
    encoder = [key for key in encoder if ".pooler." not in key]  # some checkpoints have none
    if encoder:
        message = f"model.name {name!r} lacks {len(encoder)} weights of the encoder: {encoder[0]}"
        raise ConfigError(message, "is it a checkpoint of another family, or of other sizes?")


def _check_fit(
    settings: ModelSettings, name: str, tokenizer: Tokenizer, model: PreTrainedModel
) -> None:
    rows, size = int(model.config.vocab_size), tokenizer.get_vocab_size()
    if rows < size:
        message = f"the tokenizer of {name!r} has {size} ids, the checkpoint embeds {rows}"
        raise ConfigError(message, "the vocabulary is another model's")
    # Families count their positions differently (RoBERTa starts at the pad id), so it is tried.
    longest_BT = torch.full((1, settings.max_length), size - 1)
    try:
        with torch.inference_mode():
            model.eval()(input_ids=longest_BT, attention_mask=torch.ones_like(longest_BT))
    except (IndexError, RuntimeError) as error:
        positions = getattr(model.config, "max_position_embeddings", "fewer")
        message = f"model.max_length {settings.max_length}: {name!r} has {positions} positions"
        raise ConfigError(message, "lower model.max_length") from error
