"""Opens pretrained checkpoints and checks that they match the settings and the tokenizer."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from pipework.errors import ConfigError
from pipework.machine import is_out_of_memory
from pipework.progress import counted
from pipework.tasks.task import Task
from pipework.train.config.model import LINEAR_FAMILY, Head, ModelSettings
from pipework.train.data.tokenizer import check_openable, library_errors, summary
from pipework.train.model.encoder_configs import read_config
from pipework.train.model.families import set_head_dropout
from pipework.train.model.tensorflow_weights import convert, find_index

# An embedding may be rounded up to more rows than the vocabulary has, but by less than 10 %.
MIN_VOCABULARY_SHARE = 0.9
LISTED = 10  # names of weights in a message
Encode = Callable[[torch.Tensor], torch.Tensor]
CHECK_SIZES = "check that family and sizes in config.json match the weights"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelNames:
    """The labels of a task as in a config of transformers, and the class of its linear models."""

    id2label: dict[int, str]
    label2id: dict[str, int]
    problem_type: str
    model_class: type[Any]

    @classmethod
    def of(cls, task: Task) -> "LabelNames":
        """Return the label names of a task."""
        ids = dict(enumerate(task.labels))
        indices = {label: index for index, label in ids.items()}
        return cls(
            id2label=ids,
            label2id=indices,
            problem_type=task.problem_type,
            model_class=linear_model_class(per_token=task.rows_per_token),
        )

    def write(self, config: PreTrainedConfig) -> None:
        """Write the label names to a config."""
        config.id2label, config.label2id = self.id2label, self.label2id
        config.problem_type = self.problem_type or None


def linear_model_class(*, per_token: bool) -> type[Any]:
    """Return the class of transformers with a linear head, for the first token or each token."""
    chosen: type[Any] = AutoModelForSequenceClassification
    if per_token:
        chosen = AutoModelForTokenClassification
    return chosen


def without_activation(config: PreTrainedConfig) -> None:
    """Remove the activation of a cross-encoder: training computes the loss of its logits."""
    for name in ("sentence_transformers", "sbert_ce_default_activation_function"):
        if hasattr(config, name):
            delattr(config, name)


def open_pretrained(
    settings: ModelSettings, name: str, names: LabelNames
) -> tuple[PreTrainedModel, bool]:
    """Open a checkpoint in float32: a sequence classifier for a linear head, else the encoder.

    Returns:
        The model, and whether the checkpoint contained its head.

    Raises:
        ConfigError: it cannot be opened, or encoder weights are missing.
    """
    with opening(name):
        config = read_config(name)
        if config.model_type == LINEAR_FAMILY:
            message = f"model.name {name!r} is a linear model, which has no encoder to train"
            raise ConfigError(message, "fit another with model.preset=linear")
        names.write(config)
        without_activation(config)
        set_head_dropout(config, settings.dropout)
        linear = settings.head is Head.LINEAR
        if linear:
            model, loading = load(names.model_class, name, config)
        else:
            model, loading = load(AutoModel, name, config, **no_pooler(config))
    missing = check_loaded(name, model, loading, linear=linear)
    return model, linear and not missing


def load(
    kind: type[Any], name: str, config: PreTrainedConfig, **options: bool | dict[str, str]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load the weights of PyTorch or TensorFlow 1 in float32.

    Args:
        kind: a class such as AutoModel.
        name: a folder or hub id.
        config: its config.
        options: more arguments of the model.

    Returns:
        The model, and the missing and unexpected weights and weights of another shape.

    Raises:
        ConfigError: a variable of TensorFlow matches no weight.
    """
    arguments = {
        "dtype": torch.float32,
        "ignore_mismatched_sizes": True,
        "output_loading_info": True,
        **options,
    }
    index = find_index(name)
    if index is None:
        model, loading = kind.from_pretrained(name, config=config, **arguments)
        return model, loading
    converted = convert(index, config)
    with torch.device("meta"):  # only a class of a family, not AutoModel, takes weights
        family = type(kind.from_config(config, **options))
    model, loading = family.from_pretrained(
        None, config=converted.config, state_dict=converted.weights, **arguments
    )
    if unmatched := converted.unmatched(loading["unexpected_keys"]):
        message = f"{index}: {counted(len(unmatched), 'variable')} without a weight in the model: "
        raise ConfigError(message + listing(unmatched), CHECK_SIZES)
    return model, loading


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Convert the errors of the library into a ConfigError that names the checkpoint.

    Those of a failed allocation are not converted.

    Raises:
        ConfigError: the checkpoint cannot be opened.
    """
    check_openable(name)
    try:
        yield
    except SafetensorError as error:
        message = f"checkpoint {name!r}: a safetensors file is damaged: {error}"
        raise ConfigError(message, "copy or download the weights again") from error
    except pickle.UnpicklingError as error:
        message = f"checkpoint {name!r}: the weights are a pickle that contains more than tensors"
        raise ConfigError(
            message, "a pickle can execute code: save the weights as safetensors first"
        ) from error
    except library_errors() as error:
        if is_out_of_memory(error):
            raise
        message = f"checkpoint {name!r} cannot be opened: {summary(error)}"
        hint = "expected a hub id, or a folder with config.json or bert_config.json"
        raise ConfigError(message, hint) from error


def no_pooler(config: PreTrainedConfig) -> dict[str, bool]:
    """Return the arguments that disable the pooler, if the family has that option."""
    try:
        kind = MODEL_MAPPING[type(config)]
    except KeyError as error:
        message = f"transformers has no encoder for model_type {config.model_type}"
        raise ConfigError(message, "choose a family that AutoModel supports") from error
    kind = kind[0] if isinstance(kind, tuple) else kind
    code = getattr(kind, "__init__").__code__  # noqa: B009  (mypy: unsound on an instance)
    return {"add_pooling_layer": False} if "add_pooling_layer" in code.co_varnames else {}


def check_loaded(
    name: str, model: PreTrainedModel, loading: Mapping[str, Any], *, linear: bool
) -> set[str]:
    """Check that all encoder weights were loaded; return the names of missing other weights.

    Raises:
        ConfigError: some are missing; the message names the first.
    """
    missing = {str(key) for key in loading["missing_keys"]}
    missing |= {
        str(key[0] if isinstance(key, tuple) else key) for key in loading["mismatched_keys"]
    }
    prefix = f"{model.base_model_prefix}." if linear else ""
    encoder = sorted(key for key in missing if key.startswith(prefix))
    encoder = [key for key in encoder if "pooler." not in key]  # some checkpoints have no pooler
    if encoder:
        message = (
            f"checkpoint {name!r}: {counted(len(encoder), 'encoder weight')} missing: {encoder[0]}"
        )
        raise ConfigError(message, CHECK_SIZES)
    return {key for key in missing if not key.startswith(prefix)} if prefix else missing


def listing(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def check_vocabulary(name: str, tokenizer: Tokenizer, rows: int) -> None:
    """Check that the size of the vocabulary matches the embedding of the checkpoint.

    Raises:
        ConfigError: the tokenizer has more ids than the embedding has rows, or far fewer.
    """
    size = tokenizer.get_vocab_size()
    if size > rows or size < MIN_VOCABULARY_SHARE * rows:
        message = f"the tokenizer of {name!r} has {size} ids, the embedding has {rows} rows"
        raise ConfigError(message, "use the tokenizer that belongs to the checkpoint")


def check_length(settings: ModelSettings, config: PreTrainedConfig, encode: Encode) -> None:
    """Check that an encoder of `model.name` takes texts of `model.max_length` tokens.

    `encode` computes the states of ids [1, T].

    Raises:
        ConfigError: it has too few positions.
    """
    # Families count positions differently (RoBERTa starts after the pad id): try a forward pass.
    longest_1T = torch.full((1, settings.max_length), int(config.vocab_size) - 1)
    try:
        with torch.inference_mode():
            encode(longest_1T)
    except (IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        positions = getattr(config, "max_position_embeddings", "fewer")
        length = f"model.max_length {settings.max_length}"
        message = f"{length}: {settings.name!r} has {positions} positions"
        raise ConfigError(message, "lower model.max_length") from error
