"""Configs of encoders: of pretrained checkpoints, and of presets that are trained from scratch.

A config file with a `model_type` is read by transformers. Older BERT and ALBERT releases have none:
their files are converted if the keys identify the family, and rejected otherwise, because a wrong
family would load without an error and give wrong results.

Shapes: H width of the encoder.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING, AlbertConfig, AutoConfig, BertConfig, PreTrainedConfig

from pipework.errors import ConfigError
from pipework.train.config.model import ModelSettings, Preset, PresetFamily

FILES = ("config.json", "bert_config.json", "albert_config.json")
SIZES = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
}
BERT = SIZES | {
    *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("layer_norm_eps", "pad_token_id"),
}
# Additional keys of Google's BERT; the pooler always has these values.
FIXED: dict[str, object] = {"directionality": "bidi", "pooler_type": "first_token_transform"}
UNUSED = {
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    "pooler_size_per_head",
}
# Google's ALBERT: features that transformers does not support; published models do not use them.
GOOGLE: dict[str, object] = {
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
}
# brightmart's ALBERT (albert_zh): shares all layers without a key for it; has a key for the norm.
BRIGHTMART: dict[str, object] = {"ln_type": "postln"}
# What a model returns besides its logits: with attentions it cannot use the fused kernels.
PROGRAM: dict[str, Any] = {
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
}
OWN_KEYS = ("auto_map", "architectures", "model_type")  # of a config with code
HEAD_WIDTH = 64  # of the attention heads of a preset
# The number of layers and their width.
PRESETS = {
    Preset.TINY: (2, 128),
    Preset.MINI: (4, 256),
    Preset.SMALL: (4, 512),
    Preset.MEDIUM: (8, 512),
    Preset.BASE: (12, 768),
}


def read_config(name: str, family: str | None = None) -> PreTrainedConfig:
    """Read the config of a hub id or of a folder, converting legacy formats.

    Args:
        name: a hub id or folder.
        family: replaces the `model_type`, and no code of the source is needed.

    Raises:
        ConfigError: the file is not JSON, or its family is ambiguous or unknown.
        OSError: there is no config.
    """
    if family is not None:
        return _neutral(_config_of(name, family))
    path = next((path for path in _candidates(Path(name)) if path.is_file()), None)
    if path is None:
        return _neutral(AutoConfig.from_pretrained(name, **PROGRAM))
    fields = _fields(path)
    if "model_type" not in fields:
        return _converted(path, fields)
    return _neutral(AutoConfig.from_pretrained(path, **PROGRAM))


def _config_of(name: str, family: str) -> PreTrainedConfig:
    if family not in CONFIG_MAPPING:
        message = f"transformers has no family {family!r}"
        raise ConfigError(message, "expected a model_type, such as bert or roberta")
    fields, _ = PreTrainedConfig.get_config_dict(name)
    own = {key: value for key, value in fields.items() if key not in OWN_KEYS}
    return AutoConfig.for_model(family, **(own | PROGRAM))


def _neutral(config: PreTrainedConfig) -> PreTrainedConfig:
    config._attn_implementation = None  # noqa: SLF001  (the library then chooses)
    return config


def _candidates(folder: Path) -> list[Path]:
    named = [folder / name for name in FILES]
    return [*named, *sorted(folder.glob("albert_config_*.json"))[:1]]


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        message = f"{path} is not JSON: {error}"
        raise ConfigError(message) from error
    if not isinstance(fields, dict):
        message = f"{path}: expected an object, found {type(fields).__name__}"
        raise ConfigError(message)
    return fields


def _converted(path: Path, fields: dict[str, Any]) -> PreTrainedConfig:
    missing = sorted(SIZES - fields.keys())
    if missing:
        raise _ambiguous(path, f"has no {', '.join(missing)}")
    kind, required = _family(fields)
    general = PreTrainedConfig().to_dict().keys()
    fixed = FIXED | required
    allowed = BERT | UNUSED | general | fixed.keys() | ({"embedding_size"} if required else set())
    unknown = sorted(fields.keys() - allowed)
    if unknown:
        raise _ambiguous(path, f"has the key {unknown[0]}, which no supported format has")
    for key, expected in fixed.items():
        if fields.get(key, expected) != expected:
            reason = f"has {key} {fields[key]!r}, but transformers supports only {expected!r}"
            raise _ambiguous(path, reason)
    if fields["type_vocab_size"] != 2:  # noqa: PLR2004
        size = fields["type_vocab_size"]
        raise _ambiguous(path, f"has type_vocab_size {size}: it may be RoBERTa or BERT")
    supported = BERT | general | {"embedding_size", "num_hidden_groups", "inner_group_num"}
    return kind(**{key: value for key, value in fields.items() if key in supported})


def _family(fields: dict[str, Any]) -> tuple[type[PreTrainedConfig], dict[str, object]]:
    """Return the family, and the required values of its other keys."""
    if "embedding_size" in fields and "ln_type" in fields:
        return AlbertConfig, BRIGHTMART
    if "embedding_size" in fields and GOOGLE.keys() <= fields.keys():
        return AlbertConfig, GOOGLE
    return BertConfig, {}


def _ambiguous(path: Path, reason: str) -> ConfigError:
    hint = 'add the family to the file: "model_type": "..."'
    return ConfigError(f"{path} {reason}", hint)


def preset_config(
    settings: ModelSettings, preset: Preset, tokenizer: Tokenizer
) -> PreTrainedConfig:
    """Return the config of a preset for a vocabulary.

    ALBERT follows Lan et al. 2020 (https://arxiv.org/abs/1909.11942): token embeddings of width
    `model.embedding` are projected to H, and all layers share their weights.

    Raises:
        ConfigError: the preset is a linear model, which has no encoder.
    """
    if preset is Preset.LINEAR:
        message = "model.preset linear has no steps of training"
        raise ConfigError(message, "use pipe train with labelled rows, or another model.preset")
    layers, width = PRESETS[preset]
    sizes = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD_WIDTH,
        "intermediate_size": 4 * width,
        "max_position_embeddings": settings.max_length,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
        "pad_token_id": tokenizer.token_to_id("[PAD]"),
    }
    match settings.family:
        case PresetFamily.BERT:
            return BertConfig(**sizes)
        case PresetFamily.ALBERT:
            return AlbertConfig(
                **sizes,
                embedding_size=settings.embedding,
                num_hidden_groups=1,
                classifier_dropout_prob=settings.dropout,
                bos_token_id=tokenizer.token_to_id("[CLS]"),
                eos_token_id=tokenizer.token_to_id("[SEP]"),
            )
