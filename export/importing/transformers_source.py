"""Open a sequence classifier that another program saved, with strict checks.

Supported sources are the folders and hub ids that `AutoModelForSequenceClassification` opens, the
cross-encoders of sentence-transformers, and LoRA adapters on such a model.

Shapes: N texts, C classes, T tokens of a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from tokenizers import Tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pipework.data.examples import Example
from pipework.errors import ConfigError
from pipework.export.importing.adapters import Adapter, find_file
from pipework.export.publish.folder import PUBLISHED_FILE, PublishedModel
from pipework.run_folder.task import Task, TaskKind
from pipework.train.config.data import TaskSettings
from pipework.train.config.model import HeadSettings, ModelSettings
from pipework.train.data.labels import SCORE
from pipework.train.data.tokenizer import checkpoint_tokenizer
from pipework.train.model.classifier import Classifier, padding_of, silence_transformers
from pipework.train.model.families import output_activation
from pipework.train.model.legacy_configs import read_config
from pipework.train.model.packed_encoder import first_position
from pipework.train.model.pretrained import PROBLEMS, LabelNames, check_vocabulary, opening

USUAL_LENGTH = 512  # tokens; the proof of longer inputs takes minutes, so they need a setting
UNLIMITED = 1 << 20  # tokenizers without a limit have a huge number
CLASSIFIER = "ForSequenceClassification"


class SourceKind(StrEnum):
    """The kind of source."""

    TRANSFORMERS = "transformers"
    CROSS_ENCODER = "cross-encoder"
    LORA = "LoRA adapter"


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """An opened source.

    Attributes:
        kind: the kind of source.
        name: its folder or hub id.
        classifier: the model that is copied into the run folder.
        tokenizer: its tokenizer.
        tokenizer_name: the folder or hub id with the files of the tokenizer.
        reopen: opens the source again, as other programs do, without changing its weights.
        task: kind, labels and metric; a multi-label task without thresholds.
        type_ids: whether the source distinguishes the texts of a pair by type ids.
        longest: the largest number of tokens of an input; None if the model has no limit.
        published: what `pipe publish` wrote into the source; None for other sources.
    """

    kind: SourceKind
    name: str
    classifier: Classifier
    tokenizer: Tokenizer
    tokenizer_name: str
    reopen: Callable[[], torch.nn.Module]
    task: Task
    type_ids: bool
    longest: int | None
    published: PublishedModel | None

    @property
    def pair(self) -> bool:
        """Whether an input of the source is certainly two texts."""
        if self.published is not None:
            return "text_pair" in self.published.fields
        return self.kind is SourceKind.CROSS_ENCODER

    def max_length(self, wanted: int | None) -> int:
        """Return the maximum number of tokens of an input.

        Raises:
            ConfigError: the model has fewer positions than `wanted`.
        """
        if wanted is not None and self.longest is not None and wanted > self.longest:
            message = f"max_length {wanted}: {self.name!r} takes at most {self.longest} tokens"
            raise ConfigError(message, "lower max_length")
        usual = USUAL_LENGTH if self.published is None else self.published.max_length
        return wanted or min(self.longest or usual, usual)


def open_source(name: str, settings: TaskSettings) -> SourceModel:
    """Open a folder or a hub id.

    Args:
        name: the folder or hub id.
        settings: overrides of the kind of task, its labels and its metric.

    Raises:
        ConfigError: the source cannot be opened, has no classification head, or its config, weights
            and tokenizer do not match.
    """
    silence_transformers()
    with opening(name):
        adapter = Adapter.of(name)
    weights = name if adapter is None else adapter.base
    config = _config(weights, adapter)
    model, loading = _load(weights, config)
    if adapter is not None and adapter.provides(loading["missing_keys"]):
        loading = {**loading, "missing_keys": set()}
        model = adapter.merge(model)
    _check_weights(name, model, loading)
    published = _published(name)
    task = _task(name, config, settings)
    if published is not None and task.labels == published.task.labels:
        changed = {key: getattr(task, key) for key in settings.model_fields_set}
        task = published.task.model_copy(update=changed)
    tokenizer_name = name if find_file(name, "tokenizer_config.json") else weights
    tokenizer = checkpoint_tokenizer(ModelSettings(name=tokenizer_name), tokenizer_name)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_vocabulary(name, tokenizer, int(config.vocab_size))
    LabelNames.of(task).write(model.config)
    classifier = Classifier(model.eval(), HeadSettings())
    options = _tokenizer_options(tokenizer_name)
    sends_types = "token_type_ids" in options.model_input_names
    return SourceModel(
        kind=_kind(config) if adapter is None else SourceKind.LORA,
        name=name,
        classifier=classifier,
        tokenizer=tokenizer,
        tokenizer_name=tokenizer_name,
        reopen=partial(_reopen, weights, adapter),
        task=task,
        type_ids=sends_types and padding_of(classifier).type_ids,
        longest=_longest(classifier, int(options.model_max_length)),
        published=published,
    )


def _config(name: str, adapter: Adapter | None) -> PreTrainedConfig:
    with opening(name):
        config = read_config(name)
    if adapter is None:
        _check_config(name, config)
    elif config.num_labels != adapter.labels:
        config.num_labels = adapter.labels  # the base has the default of two labels
    return config


def _load(name: str, config: PreTrainedConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
    with opening(name):
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # reported with the names of the labels
            output_loading_info=True,
        )
    return model, loading


def _reopen(name: str, adapter: Adapter | None) -> torch.nn.Module:
    labels = {} if adapter is None else {"num_labels": adapter.labels}
    with opening(name):
        model = AutoModelForSequenceClassification.from_pretrained(
            name, dtype=torch.float32, **labels
        )
        return model if adapter is None else adapter.apply(model)


def _published(name: str) -> PublishedModel | None:
    path = find_file(name, PUBLISHED_FILE)
    if path is None:
        return None
    try:
        return PublishedModel.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
        raise ConfigError(message, "publish the run again with this version") from error


def _check_config(name: str, config: PreTrainedConfig) -> None:
    if getattr(config, "auto_map", None):
        message = f"{name!r} needs code of its own (auto_map in config.json), which can do anything"
        raise ConfigError(message, "save it with a class of transformers, then import that folder")
    architecture = (config.architectures or [CLASSIFIER])[0]
    if not architecture.endswith(CLASSIFIER):
        message = f"{name!r} is a {architecture}, expected a sequence classifier"
        raise ConfigError(message, f"train a head first: pipe train CONFIG --set model.name={name}")
    if sorted(config.id2label) != list(range(len(config.id2label))):
        message = (
            f"{name!r}: id2label has the ids {sorted(config.id2label)}, expected 0 to "
            f"{len(config.id2label) - 1}"
        )
        raise ConfigError(message, "correct id2label in config.json")


def _check_weights(name: str, model: PreTrainedModel, loading: dict[str, Any]) -> None:
    """Check that the head has a row for each label, and that all weights are there and finite."""
    labels = int(model.config.num_labels)
    for weight, found, expected in sorted(loading["mismatched_keys"]):
        if expected[0] == labels != found[0]:
            message = (
                f"{name!r}: id2label in config.json has {labels} labels, but {weight} has "
                f"{found[0]} rows"
            )
            raise ConfigError(message, "correct id2label: a name for each row, in their order")
        message = f"{name!r}: {weight} has the shape {[*found]}, the config needs {[*expected]}"
        raise ConfigError(message, "check that config.json belongs to the weights")
    if missing := sorted(map(str, loading["missing_keys"])):
        message = f"{name!r}: {len(missing)} weights are missing, such as {missing[0]}"
        hint = f"if its head was never trained: pipe train CONFIG --set model.name={name}"
        raise ConfigError(message, hint)
    for weight, values in model.state_dict().items():
        if values.is_floating_point() and not bool(values.isfinite().all()):
            message = f"{name!r}: {weight} contains NaN or infinity"
            raise ConfigError(message, "the training failed: use an earlier checkpoint")


def _kind(config: PreTrainedConfig) -> SourceKind:
    own = ("sentence_transformers", "sbert_ce_default_activation_function")
    found = any(getattr(config, name, None) for name in own)
    return SourceKind.CROSS_ENCODER if found else SourceKind.TRANSFORMERS


def _task(name: str, config: PreTrainedConfig, settings: TaskSettings) -> Task:
    """Return the task of a config; the settings have priority."""
    kinds = {problem: kind for kind, problem in PROBLEMS.items()}
    single = TaskKind.REGRESSION if config.num_labels == 1 else TaskKind.SINGLE_LABEL
    kind = kinds.get(config.problem_type, single)
    if "kind" in settings.model_fields_set:
        kind = settings.kind
    fits = config.num_labels == 1 if kind is TaskKind.REGRESSION else kind in kinds.values()
    if not fits or (kind is TaskKind.SINGLE_LABEL and config.num_labels == 1):
        message = f"{name!r} has {config.num_labels} logits, which does not fit the task {kind}"
        raise ConfigError(message, "set task.kind: " + ", ".join(kinds.values()))
    if output_activation(config) is not None and kind is not TaskKind.REGRESSION:
        message = f"{name!r} applies an activation to its logits, expected this for one score only"
        raise ConfigError(message, "remove activation_fn from config.json")
    names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    labels = (SCORE,) if kind is TaskKind.REGRESSION else _labels(settings, names)
    return Task(
        kind=kind,
        labels=labels,
        metric=settings.metric_for(labels),
        positive=settings.positive_for(labels),
    )


def _labels(settings: TaskSettings, names: tuple[str, ...]) -> tuple[str, ...]:
    if settings.labels is None:
        return names
    if isinstance(settings.labels, Path) or len(settings.labels) != len(names):
        message = f"expected task.labels to be a list of {len(names)} labels"
        raise ConfigError(message, f"they replace, in this order: {', '.join(names)}")
    return settings.labels


def _tokenizer_options(name: str) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        message = f"the tokenizer of {name!r} has no pad token"
        hint = "add pad_token to tokenizer_config.json, and its id to config.json as pad_token_id"
        raise ConfigError(message, hint)
    return tokenizer


def _longest(classifier: Classifier, tokenizer_limit: int) -> int | None:
    """Return the smaller of the limits of the tokenizer and of the position embeddings."""
    limits = [tokenizer_limit]
    positions = int(getattr(classifier.config, "max_position_embeddings", None) or 0)
    if positions > 0:  # XLNet has none
        limits.append(positions - first_position(classifier.encoder))
    return min((limit for limit in limits if limit < UNLIMITED), default=None)


class TransformersReference:
    """The source as transformers runs it: a text per call, with its own tokenizer.

    Model and tokenizer are loaded from the source again, so that it shows errors of the copy.
    """

    def __init__(self, source: SourceModel, max_length: int) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(source.tokenizer_name)
        self._max_length = max_length
        self._model = source.reopen().eval()
        self._activation = output_activation(source.classifier.config) or torch.nn.Identity()

    def token_ids(self, example: Example) -> list[int]:
        """Return the token ids [T] of an input."""
        ids: list[int] = self._tokens(example)["input_ids"][0].tolist()
        return ids

    def logits(
        self, examples: Sequence[Example], advance: Callable[[int], None]
    ) -> NDArray[np.float32]:
        """Return logits [N, C]; `advance` is called after each input."""
        rows = []
        with torch.inference_mode():
            for example in examples:
                rows.append(self._activation(self._model(**self._tokens(example)).logits)[0])
                advance(1)
        return torch.stack(rows).float().numpy()

    def _tokens(self, example: Example) -> dict[str, torch.Tensor]:
        # In lists, as in a batch: outside of lists, an empty second text is ignored.
        tokens: dict[str, torch.Tensor] = self._tokenizer(
            [example.text],
            None if example.text_pair is None else [example.text_pair],
            truncation=True,
            max_length=self._max_length,
            return_tensors="pt",
        )
        return tokens

    def special_tokens(self) -> tuple[str, ...]:
        """Return the special tokens, which the source also finds inside texts."""
        return tuple(map(str, self._tokenizer.all_special_tokens))
