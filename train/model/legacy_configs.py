"""A checkpoint folder's config file in today's words, from the older dialects there are.

A file that names its `model_type` is read by transformers. One that does not is translated when
its keys say plainly which family it is, and refused otherwise: a wrong guess loads without error
and answers nonsense.
"""

import json
from pathlib import Path
from typing import Any

from transformers import AlbertConfig, AutoConfig, BertConfig, PreTrainedConfig

from pipework.errors import ConfigError

FILES = ("config.json", "bert_config.json", "albert_config.json")
SIZES = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "type_vocab_size"),
}
BERT = SIZES | {
    *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("layer_norm_eps", "pad_token_id"),
}
# What Google's BERT writes beside them; the pooler has always been this one.
FIXED: dict[str, object] = {"directionality": "bidi", "pooler_type": "first_token_transform"}
UNUSED = {
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    "pooler_size_per_head",
}
# Google's ALBERT: these switch on what transformers has not, and are off in what was published.
GOOGLE: dict[str, object] = {
    "net_structure_type": 0,
    "gap_size": 0,
    "num_memory_blocks": 0,
    "down_scale_factor": 1,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
}
# brightmart's ALBERT (albert_zh): shares all layers without saying so, and says where the norm is.
BRIGHTMART: dict[str, object] = {"ln_type": "postln"}


def read_config(name: str) -> PreTrainedConfig:
    """Read the config of a hub id or of a folder, whichever dialect it is in.

    Raises:
        ConfigError: the file is not JSON, or does not say which family it describes.
        OSError: there is no config.
    """
    path = next((path for path in _candidates(Path(name)) if path.is_file()), None)
    if path is None:
        return AutoConfig.from_pretrained(name)
    fields = _fields(path)
    if "model_type" not in fields:
        return _translated(path, fields)
    return AutoConfig.from_pretrained(path)


def _candidates(folder: Path) -> list[Path]:
    named = [folder / name for name in FILES]
    return [*named, *sorted(folder.glob("albert_config_*.json"))[:1]]


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_bytes())
    except ValueError as error:
        message = f"{path} is not JSON: {error}"
        raise ConfigError(message) from error
    if not isinstance(fields, dict):
        message = f"{path}: expected an object, found {type(fields).__name__}"
        raise ConfigError(message)
    return fields


def _translated(path: Path, fields: dict[str, Any]) -> PreTrainedConfig:
    missing = sorted(SIZES - fields.keys())
    if missing:
        raise _refused(path, f"lacks {', '.join(missing)}")
    kind, required = _dialect(fields)
    general = PreTrainedConfig().to_dict().keys()
    fixed = FIXED | required
    allowed = BERT | UNUSED | general | fixed.keys() | ({"embedding_size"} if required else set())
    unknown = sorted(fields.keys() - allowed)
    if unknown:
        raise _refused(path, f"has {unknown[0]}, which is of no dialect known here")
    for key, expected in fixed.items():
        if fields.get(key, expected) != expected:
            said = f"has {key} {fields[key]!r}, where transformers has only {expected!r}"
            raise _refused(path, said)
    if fields["type_vocab_size"] != 2:  # noqa: PLR2004
        raise _refused(path, f"has type_vocab_size {fields['type_vocab_size']}: RoBERTa, or BERT?")
    taken = BERT | general | {"embedding_size", "num_hidden_groups", "inner_group_num"}
    return kind(**{key: value for key, value in fields.items() if key in taken})


def _dialect(fields: dict[str, Any]) -> tuple[type[PreTrainedConfig], dict[str, object]]:
    """Return the family, and what its other keys must say."""
    if "embedding_size" in fields and "ln_type" in fields:
        return AlbertConfig, BRIGHTMART
    if "embedding_size" in fields and GOOGLE.keys() <= fields.keys():
        return AlbertConfig, GOOGLE
    return BertConfig, {}


def _refused(path: Path, why: str) -> ConfigError:
    hint = 'if you know the family, write it into the file: "model_type": "..."'
    return ConfigError(f"{path} {why}", hint)
