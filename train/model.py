"""An encoder with a head: a checkpoint that AutoModel opens, or a preset from scratch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from pipework.errors import ConfigError
from train.config import ModelSettings, Preset

SIZES = {Preset.TINY: (2, 128), Preset.MINI: (4, 256), Preset.SMALL: (4, 512)}
HEAD_WIDTH = 64


def build(settings: ModelSettings, tokenizer: Tokenizer, labels: Sequence[str]) -> PreTrainedModel:
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
        return BertForSequenceClassification(_preset(settings, settings.preset, tokenizer, names))
    return _named(settings, str(settings.name), tokenizer, names)


def open_checkpoint(folder: Path, attention: str = "sdpa") -> PreTrainedModel:
    """Load a run's checkpoint afresh, in float32 and in evaluation mode.

    `attention` is "sdpa" or, where a graph is traced, "eager".
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    return model.eval()


def uses_type_ids(model: PreTrainedModel) -> bool:
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
