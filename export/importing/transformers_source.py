"""Open a sequence classifier that another program saved, with strict checks.

Supported sources are the folders and hub ids that `AutoModelForSequenceClassification` opens, the
cross-encoders of sentence-transformers, TensorFlow 1 checkpoints of BERT and ALBERT, and
adapters and ONNX graphs of such a model.

Shapes: N texts, C classes, T tokens of a text.
"""

import json
import re
from functools import partial
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from pipework.errors import ConfigError
from pipework.export.config import ImportSettings
from pipework.export.importing.adapters import Adapter, find_file
from pipework.export.importing.custom_code import CustomCode, refuse_custom_code
from pipework.export.importing.onnx_source import OnnxSource
from pipework.export.importing.source_checks import (
    TokenizerFiles,
    check_family,
    check_weights,
    longest_input,
    wrapper_prefix,
)
from pipework.export.importing.source_model import SourceModel, published_model
from pipework.export.importing.source_task import check_labels, source_task
from pipework.export.importing.unused_parts import check_unused
from pipework.run_folder.engine_record import Precision
from pipework.run_folder.manifest import SourceKind
from pipework.train.config.model import HeadSettings
from pipework.train.model import classifier as models
from pipework.train.model.encoder_configs import read_config
from pipework.train.model.pretrained import LabelNames, check_vocabulary, load, opening
from pipework.train.model.tensorflow_weights import find_index, label_count

CLASSIFIER = "ForSequenceClassification"
CONVERTED = "compared with the converted source in transformers: TensorFlow was not run"
LOWER = "its graph computes in {0}: compared at the limits of {0} engines"
READ_AS = "read as {0} and compared with that family of transformers: its own class was not run"


def open_source(
    name: str, settings: ImportSettings, *, trust_remote_code: bool = False
) -> SourceModel:
    """Open a folder or a hub id.

    Args:
        name: the folder or hub id.
        settings: how to read it.
        trust_remote_code: whether to run code of the source.

    Raises:
        ConfigError: the source cannot be opened, has no classification head, its config, weights
            and tokenizer do not match, or a part of its encoder is ignored.
    """
    models.silence_transformers()
    with opening(name):
        adapter = Adapter.of(name, settings.adapter_base)
        if adapter is not None:
            adapter.check_base()
        return _open(name, adapter, settings, trust_remote_code)


def _open(
    name: str,
    adapter: Adapter | None,
    settings: ImportSettings,
    trust_remote_code: bool,
) -> SourceModel:
    graph, family = OnnxSource.of(name), settings.family
    weights = name if adapter is None else adapter.base
    whole = adapter is None and graph is None
    code = None if family else _custom_code(weights, trust_remote_code, whole=whole)
    config = _config(weights, adapter, family, code)
    prefix = ""
    if code is not None:
        model, loading = code.load(config)
    elif graph is not None:
        model, loading = graph.load(config)
    else:
        model, loading = _load(weights, config)
        if prefix := wrapper_prefix(loading):
            model, loading = _load(weights, config, prefix)
    if adapter is not None:
        model, unmatched = adapter.merge(model)
        loading = adapter.without_head(loading)
        loading["unexpected_keys"] = unmatched | {*loading["unexpected_keys"]}
    check_weights(name, model, loading)
    unused = check_unused(weights, model, loading, settings.allow_unused)
    published = published_model(name)
    task = source_task(name, config, settings.task, published.task if published else None)
    tokenizer_name = name if find_file(name, "tokenizer_config.json") else weights
    files = TokenizerFiles.open(tokenizer_name)
    check_vocabulary(name, files.tokenizer, int(config.vocab_size))
    LabelNames.of(task).write(model.config)
    classifier = models.Classifier(model.eval(), HeadSettings())
    return SourceModel(
        kind=_kind(weights, config, adapter, graph),
        name=name,
        classifier=classifier,
        tokenizer=files.tokenizer,
        tokenizer_name=tokenizer_name,
        reopen=graph.open if graph else partial(_reopen, weights, adapter, code, family, prefix),
        precision=Precision.FP32 if graph is None else graph.precision,
        task=task,
        type_ids=(
            files.type_ids
            and models.padding_of(classifier).type_ids
            and (graph is None or "token_type_ids" in graph.inputs)
        ),
        longest=longest_input(classifier, files.limit),
        published=published,
        findings=(
            *((CONVERTED,) if find_index(weights) is not None else ()),
            *((f"the names of its weights were read without {prefix!r}",) if prefix else ()),
            *((LOWER.format(graph.precision),) if graph and graph.precision != "fp32" else ()),
            *((READ_AS.format(family),) if family and graph is None else ()),
            *unused,
        ),
        custom_code={} if code is None else code.executed_files(),
    )


def _custom_code(name: str, trusted: bool, *, whole: bool) -> CustomCode | None:
    """Return the code of a source that may run; `whole` if it has the weights of a whole model."""
    with opening(name):
        if trusted and whole:
            return CustomCode.of(name)
        refuse_custom_code(name, trust_possible=whole)
    return None


def _config(
    name: str, adapter: Adapter | None, family: str | None, code: CustomCode | None = None
) -> PreTrainedConfig:
    with opening(name):
        config = read_config(name, family) if code is None else code.config()
        check_family(name, config)
        if (index := find_index(name)) and (labels := label_count(index)):
            config.num_labels = labels  # such a config has none
        if adapter is None:
            if family is None and (code is None or not code.classifier):
                _check_architecture(name, config)
            check_labels(name, config)
            _copy_activation(name, config)
        elif config.num_labels != adapter.labels:
            config.num_labels = adapter.labels  # the base has the labels of another head
    return config


def _copy_activation(name: str, config: PreTrainedConfig) -> None:
    """Copy the activation of a cross-encoder to the config, where older versions store it."""
    path = find_file(name, "config_sentence_transformers.json")
    fields = {} if path is None else json.loads(path.read_bytes())
    if fields.get("model_type") == "CrossEncoder":
        config.sentence_transformers = {"activation_fn": fields.get("activation_fn")}


def _load(
    name: str, config: PreTrainedConfig, prefix: str = ""
) -> tuple[PreTrainedModel, dict[str, Any]]:
    with opening(name):
        model, loading = load(models.model_class(config), name, config, **_without(prefix))
    if prefix:  # transformers would add the prefix again where it saves this model
        new = models.model_class(config).from_config(config, dtype=torch.float32)
        new.load_state_dict(model.state_dict())
        return new, loading
    return model, loading


def _without(prefix: str) -> dict[str, dict[str, str]]:
    """Return the arguments of `from_pretrained` that remove a prefix from the stored names."""
    return {"key_mapping": {f"^{re.escape(prefix)}": ""}} if prefix else {}


def _reopen(
    name: str, adapter: Adapter | None, code: CustomCode | None, family: str | None, prefix: str
) -> torch.nn.Module:
    if code is not None:
        return code.open()
    with opening(name):
        if find_index(name) is None:
            config = read_config(name, family)
            if adapter is not None:  # the base may have no head, or another
                config.num_labels = adapter.labels
            model = models.model_class(config).from_pretrained(
                name,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=adapter is not None,
                **_without(prefix),
            )
        else:
            model, _ = _load(name, _config(name, adapter, family))
        return model if adapter is None else adapter.apply(model)


def _check_architecture(name: str, config: PreTrainedConfig) -> None:
    architecture = (config.architectures or [CLASSIFIER])[0]
    if not architecture.endswith(CLASSIFIER) and not models.is_per_token(architecture):
        message = f"{name!r} is a {architecture}, expected a sequence or token classifier"
        hint = f"train a head first: pipe train CONFIG --set model.name={name}"
        if not hasattr(transformers, architecture):
            hint = "if its modules and weights are those of BERT: --as bert; or " + hint
        raise ConfigError(message, hint)


def _kind(
    name: str, config: PreTrainedConfig, adapter: Adapter | None, graph: OnnxSource | None
) -> SourceKind:
    if graph is not None:
        return SourceKind.ONNX
    if adapter is not None:
        return SourceKind.LORA if adapter.type == "LORA" else SourceKind.ADAPTER
    if find_index(name) is not None:
        return SourceKind.TENSORFLOW
    own = ("sentence_transformers", "sbert_ce_default_activation_function")
    found = any(getattr(config, name, None) for name in own)
    return SourceKind.CROSS_ENCODER if found else SourceKind.TRANSFORMERS
