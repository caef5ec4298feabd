"""Check family, weights and tokenizer of a source, and find the maximum length of its inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

from pipework.errors import ConfigError
from pipework.export.importing.adapters import find_file
from pipework.export.importing.custom_code import SAVE_AGAIN, custom_classes
from pipework.progress import counted
from pipework.train.config.model import ModelSettings
from pipework.train.data.tokenizer import checkpoint_tokenizer
from pipework.train.model.classifier import Classifier
from pipework.train.model.families import ENCODER_DECODERS
from pipework.train.model.packed_encoder import first_position
from pipework.train.model.tensorflow_weights import find_index

CONFIG = "tokenizer_config.json"
SHORTEST = 3  # tokens
BIDIRECTIONAL = {"xlm", "xlnet", "flaubert"}  # of the families with a causal model only
UNLIMITED = 1 << 20  # tokenizers without a limit have a huge number


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """The tokenizer of a source.

    Attributes:
        tokenizer: without padding; of truncation it has only the side.
        type_ids: whether it returns type ids.
        limit: its maximum number of tokens; a huge number for no limit.
    """

    tokenizer: Tokenizer
    type_ids: bool
    limit: int

    @classmethod
    def open(cls, name: str) -> "TokenizerFiles":
        """Read the files of a folder or hub id.

        Raises:
            ConfigError: they cannot be read, or there is no pad token.
        """
        if custom_classes(name, CONFIG):
            message = f"the tokenizer of {name!r} needs code of its own (auto_map in {CONFIG})"
            raise ConfigError(message, SAVE_AGAIN)
        tokenizer = checkpoint_tokenizer(ModelSettings(name=name), name)
        tokenizer.no_padding()
        options = open_tokenizer(name)
        tokenizer.enable_truncation(UNLIMITED, direction=options.truncation_side)
        if options.pad_token is None:
            message = f"the tokenizer of {name!r} has no pad token"
            hint = "add pad_token to tokenizer_config.json, and its id to config.json"
            raise ConfigError(message, hint)
        limit = int(options.model_max_length)
        if limit < SHORTEST:
            message = f"the tokenizer of {name!r} has the model_max_length {limit}"
            raise ConfigError(message, f"expected at least {SHORTEST} in tokenizer_config.json")
        return cls(
            tokenizer=tokenizer,
            type_ids="token_type_ids" in options.model_input_names,
            limit=limit,
        )


def check_family(name: str, config: PreTrainedConfig) -> None:
    """Check the family of a config, that its weights are floats, and its pad token.

    Raises:
        ConfigError: it is not.
    """
    if getattr(config, "quantization_config", None):
        message = f"{name!r} is quantised (quantization_config in config.json)"
        raise ConfigError(message, "import the weights before quantisation; pipe export makes int8")
    if config.is_encoder_decoder and config.model_type not in ENCODER_DECODERS:
        message = f"{name!r} has an encoder and a decoder, of the family {config.model_type}"
        raise ConfigError(message, f"supported with both: {', '.join(sorted(ENCODER_DECODERS))}")
    pad, size = config.pad_token_id, int(getattr(config, "vocab_size", None) or 0)
    if pad is None and is_decoder(config):
        message = f"{name!r} has no pad_token_id in config.json, which separates texts of a batch"
        raise ConfigError(message, "set it to the id of the pad token of the tokenizer")
    if pad is not None and size and not 0 <= pad < size:
        message = f"{name!r} has the pad_token_id {pad} in config.json, expected 0 to {size - 1}"
        raise ConfigError(message, "set it to the id of the pad token of the tokenizer")


def check_weights(name: str, model: PreTrainedModel, loading: dict[str, Any]) -> None:
    """Check that the head has a row for each label, and that all weights are there and finite."""
    labels = int(model.config.num_labels)
    for weight, found, expected in sorted(loading["mismatched_keys"]):
        if expected[0] == labels != found[0]:
            message = (
                f"{name!r}: id2label in config.json has {counted(labels, 'label')}, but {weight} "
                f"has {counted(found[0], 'row')}"
            )
            raise ConfigError(message, "correct id2label: a name for each row, in their order")
        message = f"{name!r}: {weight} has the shape {[*found]}, the config needs {[*expected]}"
        raise ConfigError(message, "check that config.json belongs to the weights")
    if missing := sorted(map(str, loading["missing_keys"])):
        message = f"{name!r}: {counted(len(missing), 'weight')} missing, such as {missing[0]}"
        hint = f"if its head was never trained: pipe train CONFIG --set model.name={name}"
        raise ConfigError(message, hint)
    for weight, values in model.state_dict().items():
        if values.is_floating_point() and not bool(values.isfinite().all()):
            message = f"{name!r}: {weight} contains NaN or infinity"
            raise ConfigError(message, "the training failed: use an earlier checkpoint")


def wrapper_prefix(loading: Mapping[str, Any]) -> str:
    """Return the prefix of the stored names of all missing weights, such as "module.", or ""."""
    missing, unexpected = sorted(map(str, loading["missing_keys"])), {*loading["unexpected_keys"]}
    stored = (name for name in unexpected if missing and name.endswith(missing[0]))
    prefixes = (name.removesuffix(missing[0]) for name in stored)
    return next((p for p in prefixes if {p + name for name in missing} <= unexpected), "")


def is_decoder(config: PreTrainedConfig) -> bool:
    """Return whether a family has causal attention, and its head reads the last token."""
    return config.model_type in CAUSAL.keys() - MASKED.keys() - BIDIRECTIONAL


def open_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a source as transformers opens it.

    Raises:
        ConfigError: it cannot be opened.
    """
    if find_index(name) is None or find_file(name, "tokenizer.json"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    # TensorFlow's folders have only a vocabulary, and no file with the casing.
    normalizer = checkpoint_tokenizer(ModelSettings(name=name), name).normalizer
    return BertTokenizer.from_pretrained(name, do_lower_case=normalizer.lowercase)


def longest_input(classifier: Classifier, tokenizer_limit: int) -> int | None:
    """Return the smaller of the limits of the tokenizer and of the position embeddings."""
    limits = [tokenizer_limit]
    positions = int(getattr(classifier.config, "max_position_embeddings", None) or 0)
    if positions > 0:  # XLNet has none
        limits.append(positions - first_position(classifier.encoder))
    return min((limit for limit in limits if limit < UNLIMITED), default=None)
