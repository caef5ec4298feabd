"""A published checkpoint becomes a model, after the checks that keep a wrong one out."""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from pipework.errors import ConfigError
from pipework.run_folder.task import Task, TaskKind
from pipework.train.config.model import Head, ModelSettings
from pipework.train.model.families import set_head_dropout
from pipework.train.model.legacy_configs import read_config

PROBLEMS = {
    TaskKind.SINGLE_LABEL: "single_label_classification",
    TaskKind.MULTI_LABEL: "multi_label_classification",
    TaskKind.REGRESSION: "regression",
}
# A vocabulary is smaller than its embedding where that was rounded up, never by a tenth.
LEAST_OF_EMBEDDING = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """The classes in the order of the logits, as a config of transformers keeps them."""

    id2label: dict[int, str]
    label2id: dict[str, int]
    problem_type: str

    @classmethod
    def of(cls, task: Task) -> "Names":
        """Return the names of a task."""
        ids = dict(enumerate(task.labels))
        named = {label: index for index, label in ids.items()}
        return cls(id2label=ids, label2id=named, problem_type=PROBLEMS[task.kind])

    def write(self, config: PreTrainedConfig) -> None:
        """Put the names into a config."""
        config.id2label, config.label2id = self.id2label, self.label2id
        config.problem_type = self.problem_type


def open_pretrained(settings: ModelSettings, name: str, names: Names) -> PreTrainedModel:
    """Open a checkpoint in float32: a standard classifier for a linear head, else the encoder.

    Raises:
        ConfigError: it cannot be opened, or weights of the encoder are missing.
    """
    with opening(name):
        config = read_config(name)
        names.write(config)
        set_head_dropout(config, settings.dropout)
        linear = settings.head is Head.LINEAR
        kind = AutoModelForSequenceClassification if linear else AutoModel
        model, loading = kind.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **({} if linear else no_pooler(config)),
        )
    check_loaded(name, model, loading, linear=linear)
    return model


@contextmanager
def opening(name: str) -> Iterator[None]:
    """Say what is wrong with a checkpoint that cannot be opened.

    Raises:
        ConfigError: naming it, in place of the library's errors.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        message = f"model.name {name!r}: its weights are a pickle that holds more than tensors"
        raise ConfigError(message, "it could run code; save it as safetensors first") from error
    except (OSError, ValueError) as error:
        message = f"model.name {name!r} cannot be opened: {str(error).splitlines()[0]}"
        raise ConfigError(message, "expected a hub id or a folder with config.json") from error


def no_pooler(config: PreTrainedConfig) -> dict[str, bool]:
    """Return the argument that leaves out the pooler, where the family has one to leave out."""
    try:
        kind = MODEL_MAPPING[type(config)]
    except KeyError as error:
        message = f"transformers has no encoder for a config of {config.model_type}"
        raise ConfigError(message, "expected a family that AutoModel opens") from error
    kind = kind[0] if isinstance(kind, tuple) else kind
    code = getattr(kind, "__init__").__code__  # noqa: B009  (mypy: unsound on an instance)
    return {"add_pooling_layer": False} if "add_pooling_layer" in code.co_varnames else {}


def check_loaded(
    name: str, model: PreTrainedModel, loading: Mapping[str, Any], *, linear: bool
) -> None:
    """Refuse a checkpoint of which the encoder got nothing, or a part only.

    Raises:
        ConfigError: naming a weight that is missing.
    """
    lost = {str(key) for key in loading["missing_keys"]}
    lost |= {str(key[0] if isinstance(key, tuple) else key) for key in loading["mismatched_keys"]}
    prefix = f"{model.base_model_prefix}." if linear else ""
    encoder = sorted(key for key in lost if key.startswith(prefix))
    encoder = [key for key in encoder if "pooler." not in key]  # some checkpoints have none
    if encoder:
        message = f"model.name {name!r} lacks {len(encoder)} weights of the encoder: {encoder[0]}"
        raise ConfigError(message, "is it a checkpoint of another family, or of other sizes?")


def check_vocabulary(name: str, tokenizer: Tokenizer, rows: int) -> None:
    """Refuse a tokenizer whose ids are not those that the checkpoint embeds.

    Raises:
        ConfigError: it has more ids than the embedding has rows, or far fewer.
    """
    size = tokenizer.get_vocab_size()
    if size > rows or size < LEAST_OF_EMBEDDING * rows:
        message = f"the tokenizer of {name!r} has {size} ids, the checkpoint embeds {rows}"
        raise ConfigError(message, "the vocabulary is another model's")
