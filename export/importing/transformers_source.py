"""Open a sequence classifier that another program saved, with strict checks.

Supported sources are the folders and hub ids that `AutoModelForSequenceClassification` opens, the
cross-encoders of sentence-transformers, TensorFlow 1 checkpoints of BERT and ALBERT, and LoRA
adapters and ONNX graphs of such a model.

Shapes: N texts, C classes, T tokens of a text.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from pipework.errors import ConfigError
from pipework.export.importing.adapters import Adapter, find_file
from pipework.export.importing.custom_code import (
    SAVE_AGAIN,
    TRUST,
    CustomCode,
    refuse_custom_code,
)
from pipework.export.importing.onnx_source import OnnxSource
from pipework.export.importing.source_checks import (
    TokenizerFiles,
    check_family,
    check_weights,
    longest_input,
    unused_weights,
)
from pipework.export.publish.folder import PUBLISHED_FILE, PublishedModel
from pipework.progress import counted
from pipework.run_folder.files import MANIFEST_FILE
from pipework.run_folder.manifest import SourceKind, read_classifier
from pipework.tasks.registry import TASKS, task_type
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.task import Task
from pipework.train.config.data import TaskSettings
from pipework.train.config.model import HeadSettings
from pipework.train.model import checkpoint
from pipework.train.model.classifier import Classifier, padding_of, silence_transformers
from pipework.train.model.encoder_configs import read_config
from pipework.train.model.families import output_activation
from pipework.train.model.pretrained import (
    LabelNames,
    check_vocabulary,
    load,
    opening,
)
from pipework.train.model.tensorflow_weights import find_index, label_count

USUAL_LENGTH = 512  # tokens; the proof of longer inputs takes minutes, so they need a setting
CLASSIFIER = "ForSequenceClassification"
CONVERTED = "compared with the converted source in transformers: TensorFlow was not run"


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
        findings: what to know about the source, for the manifest.
        custom_code: the digests of the Python files of the source that were executed, by name.
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
    findings: tuple[str, ...] = ()
    custom_code: Mapping[str, str] = field(default_factory=dict)

    @property
    def pair(self) -> bool | None:
        """Whether an input is two texts; None if unknown."""
        if self.published is not None:
            return "text_pair" in self.published.fields
        return True if self.kind is SourceKind.CROSS_ENCODER else None

    def max_length(self, wanted: int | None) -> int:
        """Return the maximum number of tokens of an input.

        Raises:
            ConfigError: the model has fewer positions than `wanted`.
        """
        if wanted is not None and self.longest is not None and wanted > self.longest:
            message = (
                f"max_length {wanted}: {self.name!r} takes at most {counted(self.longest, 'token')}"
            )
            raise ConfigError(message, "lower max_length")
        usual = USUAL_LENGTH if self.published is None else self.published.max_length
        return wanted or min(self.longest or usual, usual)


def open_source(
    name: str, settings: TaskSettings, *, trust_remote_code: bool = False
) -> SourceModel:
    """Open a folder or a hub id.

    Args:
        name: the folder or hub id.
        settings: overrides of the kind of task, its labels and its metric.
        trust_remote_code: whether to run code of the source.

    Raises:
        ConfigError: the source cannot be opened, has no classification head, or its config, weights
            and tokenizer do not match.
    """
    silence_transformers()
    with opening(name):
        return _open(name, settings, trust_remote_code)


def _open(name: str, settings: TaskSettings, trust_remote_code: bool) -> SourceModel:
    with opening(name):
        adapter, graph = Adapter.of(name), OnnxSource.of(name)
    weights = name if adapter is None else adapter.base
    code = _custom_code(weights, trust_remote_code, whole=adapter is None and graph is None)
    config = _config(weights, adapter, code)
    if code is not None:
        model, loading = code.load(config)
    else:
        model, loading = _load(weights, config) if graph is None else graph.load(config)
    if adapter is not None:
        model, unused = adapter.merge(model)
        loading = {**adapter.without_head(loading), "unexpected_keys": unused}
    check_weights(name, model, loading)
    published = _published(name)
    task = _task(name, config, settings)
    if published is not None and task.labels == published.task.labels:
        changed = {key: getattr(task, key) for key in settings.model_fields_set}
        task = published.task.model_copy(update=changed)
    tokenizer_name = name if find_file(name, "tokenizer_config.json") else weights
    files = TokenizerFiles.open(tokenizer_name)
    check_vocabulary(name, files.tokenizer, int(config.vocab_size))
    LabelNames.of(task).write(model.config)
    classifier = Classifier(model.eval(), HeadSettings())
    return SourceModel(
        kind=_kind(weights, config, adapter, graph),
        name=name,
        classifier=classifier,
        tokenizer=files.tokenizer,
        tokenizer_name=tokenizer_name,
        reopen=partial(_reopen, weights, adapter, code) if graph is None else graph.open,
        task=task,
        type_ids=(
            files.type_ids
            and padding_of(classifier).type_ids
            and (graph is None or "token_type_ids" in graph.inputs)
        ),
        longest=longest_input(classifier, files.limit),
        published=published,
        findings=(
            *((CONVERTED,) if find_index(weights) is not None else ()),
            *unused_weights(model, loading),
        ),
        custom_code={} if code is None else code.executed_files(),
    )


def _published(name: str) -> PublishedModel | None:
    """Return what pipework recorded of a published folder or of the checkpoint of a run."""
    file = find_file(name, PUBLISHED_FILE)
    if file is not None:
        return PublishedModel.read(file)
    run = Path(name).absolute().parent
    if (run / MANIFEST_FILE).is_file() and Path(name).name == checkpoint.FOLDER:
        return PublishedModel.of(read_classifier(run), ())
    return None


def _custom_code(name: str, trusted: bool, *, whole: bool) -> CustomCode | None:
    """Return the code of a source that may run; `whole` if it has the weights of a whole model."""
    with opening(name):
        if trusted and whole:
            return CustomCode.of(name)
        refuse_custom_code(name, TRUST if whole else SAVE_AGAIN)
    return None


def _config(name: str, adapter: Adapter | None, code: CustomCode | None = None) -> PreTrainedConfig:
    with opening(name):
        config = read_config(name) if code is None else code.config()
        check_family(name, config)
        if (index := find_index(name)) and (labels := label_count(index)):
            config.num_labels = labels  # such a config has none
        if adapter is None:
            if code is None or not code.classifier:
                _check_architecture(name, config)
            _check_labels(name, config)
            _copy_activation(name, config)
        elif config.num_labels != adapter.labels:
            config.num_labels = adapter.labels  # those of the base are of another head
    return config


def _copy_activation(name: str, config: PreTrainedConfig) -> None:
    """Copy the activation of a cross-encoder to the config, where older versions store it."""
    path = find_file(name, "config_sentence_transformers.json")
    fields = {} if path is None else json.loads(path.read_bytes())
    if fields.get("model_type") == "CrossEncoder":
        config.sentence_transformers = {"activation_fn": fields.get("activation_fn")}


def _load(name: str, config: PreTrainedConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
    with opening(name):
        return load(AutoModelForSequenceClassification, name, config)


def _reopen(name: str, adapter: Adapter | None, code: CustomCode | None) -> torch.nn.Module:
    if code is not None:
        return code.open()
    head = {}
    if adapter is not None:  # the base may have none, or another
        head = {"num_labels": adapter.labels, "ignore_mismatched_sizes": True}
    with opening(name):
        if find_index(name) is None:
            model = AutoModelForSequenceClassification.from_pretrained(
                name, dtype=torch.float32, **head
            )
        else:
            model, _ = _load(name, _config(name, adapter))
        return model if adapter is None else adapter.apply(model)


def _check_architecture(name: str, config: PreTrainedConfig) -> None:
    architecture = (config.architectures or [CLASSIFIER])[0]
    if not architecture.endswith(CLASSIFIER):
        message = f"{name!r} is a {architecture}, expected a sequence classifier"
        raise ConfigError(message, f"train a head first: pipe train CONFIG --set model.name={name}")


def _check_labels(name: str, config: PreTrainedConfig) -> None:
    if sorted(config.id2label) != list(range(len(config.id2label))):
        message = (
            f"{name!r}: id2label has the ids {sorted(config.id2label)}, expected 0 to "
            f"{len(config.id2label) - 1}"
        )
        raise ConfigError(message, "correct id2label in config.json")


def _kind(
    name: str, config: PreTrainedConfig, adapter: Adapter | None, graph: OnnxSource | None
) -> SourceKind:
    if adapter is not None or graph is not None:
        return SourceKind.LORA if graph is None else SourceKind.ONNX
    if find_index(name) is not None:
        return SourceKind.TENSORFLOW
    own = ("sentence_transformers", "sbert_ce_default_activation_function")
    found = any(getattr(config, name, None) for name in own)
    return SourceKind.CROSS_ENCODER if found else SourceKind.TRANSFORMERS


def _task(name: str, config: PreTrainedConfig, settings: TaskSettings) -> Task:
    """Return the task of a config; the settings have priority."""
    kinds = {task.problem_type: task for task in TASKS if task.predicts}
    default = RegressionTask if config.num_labels == 1 else SingleLabelTask
    if config.problem_type not in (*kinds, None):
        message = f"{name!r} has the problem_type {config.problem_type!r}"
        raise ConfigError(message, f"expected in config.json: {', '.join(kinds)}")
    task = kinds.get(config.problem_type, default)
    if "kind" in settings.model_fields_set:
        task = task_type(settings.kind)
    kind = task.model_fields["kind"].default
    few = config.num_labels < task.fewest_labels
    if not task.predicts or few or (task.has_values and config.num_labels > 1):
        logits = counted(config.num_labels, "logit")
        message = f"{name!r} has {logits}, which does not fit the task {kind}"
        known = (known.model_fields["kind"].default for known in kinds.values())
        raise ConfigError(message, "set task.kind: " + ", ".join(known))
    if output_activation(config) is not None and not task.has_values:
        message = f"{name!r} applies an activation to its logits, expected this for one score only"
        raise ConfigError(message, "remove activation_fn from config.json")
    settings = settings.model_copy(update={"kind": kind})  # for the metric
    names = tuple(str(config.id2label[index] or "") for index in range(config.num_labels))
    labels = task.fixed_labels or named_labels(settings, names)
    return task(
        labels=labels,
        metric=settings.metric_for(labels),
        positive=settings.positive_for(labels),
    )


def _is_label(name: str) -> bool:
    return name == name.strip() != "" and name.isprintable()


def named_labels(settings: TaskSettings, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the configured labels, or else the names in the source.

    Raises:
        ConfigError: the number of configured labels is another.
    """
    if settings.labels is None:
        if len(set(names)) < len(names) or not all(map(_is_label, names)):
            message = f"expected distinct labels in a line without outer spaces, found {names}"
            raise ConfigError(message, 'name them: --set \'task.labels=["a", "b"]\'')
        return names
    if isinstance(settings.labels, Path) or len(settings.labels) != len(names):
        message = f"expected task.labels to be a list of {counted(len(names), 'label')}"
        raise ConfigError(message, f"they replace, in this order: {', '.join(names)}")
    return settings.labels
