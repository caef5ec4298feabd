"""Open a classifier of SetFit: a sentence encoder, pooling, and a logistic regression.

SetFit (Tunstall et al. 2022, https://arxiv.org/abs/2209.11055) stores the folder of
sentence-transformers, and its head as a pickle, which is never opened here. The head is read from
model_head.safetensors or model_head.json: `coef` [K, H], `intercept` [K] and, in JSON, `classes`
and `multitarget`; K is the number of classes, or 1 for two.

Shapes: B texts, T tokens, H width, K rows of the head, C classes.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers import AutoModel, PreTrainedModel

from pipework.errors import ConfigError
from pipework.export.config import ImportSettings
from pipework.export.importing.adapters import find_file, read_json
from pipework.export.importing.custom_code import refuse_custom_code
from pipework.export.importing.source_checks import (
    TokenizerFiles,
    check_family,
    check_weights,
    longest_input,
)
from pipework.export.importing.source_model import SourceModel
from pipework.export.importing.source_task import named_labels
from pipework.export.importing.unused_parts import check_unused
from pipework.progress import counted
from pipework.run_folder.manifest import SourceKind
from pipework.tasks.kinds import DEFAULT_KIND
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.model import Head, HeadSettings, PoolingMode, PoolingSettings
from pipework.train.model.classifier import Classifier, padding_of, silence_transformers
from pipework.train.model.encoder_configs import read_config
from pipework.train.model.heads import PoolingHead
from pipework.train.model.pretrained import LabelNames, check_vocabulary, no_pooler, opening

SETTINGS, MODULES, LENGTH = "config_setfit.json", "modules.json", "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
HEAD, HEAD_JSON, PICKLE = "model_head.safetensors", "model_head.json", "model_head.pkl"
TO_JSON = (
    "convert it where you trust it: import joblib, json, pathlib; "
    'h = joblib.load("model_head.pkl"); pathlib.Path("model_head.json").write_text(json.dumps('
)
REGRESSION = (
    '{"coef": h.coef_.tolist(), "intercept": h.intercept_.tolist(), '
    '"classes": h.classes_.tolist()}))'
)
# The differentiable head is a linear layer with a temperature.
DIFFERENTIABLE = (
    '{"coef": (h.linear.weight / (h.temperature + h.eps)).tolist(), '
    '"intercept": (h.linear.bias / (h.temperature + h.eps)).tolist(), '
    '"multitarget": h.multitarget}))'
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticRegression:
    """A head: `coef_KH`, `intercept_K`, and the names of the classes."""

    coef_KH: torch.Tensor
    intercept_K: torch.Tensor
    classes: tuple[str, ...]

    def logits(self, states_BH: torch.Tensor) -> torch.Tensor:
        """Return logits [B, C], whose softmax are the probabilities of scikit-learn."""
        scores_BK = states_BH.double() @ self.coef_KH.T.double() + self.intercept_K.double()
        if len(self.coef_KH) == 1:
            scores_BK = torch.cat([torch.zeros_like(scores_BK), scores_BK], 1)
        return scores_BK.float()


def is_setfit(name: str) -> bool:
    """Whether a source is a classifier of SetFit.

    Raises:
        ConfigError: there is no such folder or hub id.
    """
    with opening(name):
        files = (SETTINGS, HEAD, HEAD_JSON, PICKLE)
        return any(find_file(name, file) is not None for file in files)


def open_setfit(name: str, settings: ImportSettings) -> SourceModel:
    """Open a folder or a hub id; see `open_source`.

    Raises:
        ConfigError: the source cannot be opened, its head is a pickle or does not fit, or it has
            modules that are not supported.
    """
    wanted, allow_unused = settings.task, settings.allow_unused
    if wanted.kind != DEFAULT_KIND:
        message = f"{name!r} is a classifier of one label per text, task.kind is {wanted.kind}"
        raise ConfigError(message, "remove task.kind")
    if settings.family is not None:
        message = f"{name!r} is a classifier of SetFit, which cannot be read as {settings.family}"
        raise ConfigError(message, "remove --as")
    silence_transformers()
    with opening(name):
        fields = read_json(name, SETTINGS)
        head = _head(name, fields)
        _check_inputs(name)
        pooling = _pooling(name, normalized=bool(fields.get("normalize_embeddings")))
        encoder, findings = _encoder(name, allow_unused)
        longest = read_json(name, LENGTH).get("max_seq_length")
    labels = named_labels(wanted, head.classes)
    task = SingleLabelTask(
        labels=labels, metric=wanted.metric_for(labels), positive=wanted.positive_for(labels)
    )
    LabelNames.of(task).write(encoder.config)
    classifier = Classifier(encoder, HeadSettings(head=Head.POOLING, dropout=0.0, pooling=pooling))
    _fill(classifier.head, head, name)
    files = TokenizerFiles.open(name)
    check_vocabulary(name, files.tokenizer, int(encoder.config.vocab_size))
    limit = min(int(longest or files.limit), files.limit)
    return SourceModel(
        kind=SourceKind.SETFIT,
        name=name,
        classifier=classifier.eval(),
        tokenizer=files.tokenizer,
        tokenizer_name=name,
        reopen=partial(_reopen, name, allow_unused, pooling, head),
        task=task,
        type_ids=files.type_ids and padding_of(classifier).type_ids,
        longest=longest_input(classifier, limit),
        published=None,
        findings=findings,
    )


def _check_inputs(name: str) -> None:
    """Check that sentence-transformers does not change a text before the tokenizer."""
    fields = read_json(name, PROMPTS)
    prompt = (fields.get("prompts") or {}).get(fields.get("default_prompt_name"))
    if prompt:
        message = f"{name!r} adds the prompt {prompt!r} to each text"
        raise ConfigError(message, f"not supported: remove default_prompt_name from {PROMPTS}")
    if read_json(name, LENGTH).get("do_lower_case"):
        message = f"{name!r} has do_lower_case in {LENGTH}"
        raise ConfigError(message, "not supported: lower the case in the tokenizer, and remove it")


def _head(name: str, fields: dict[str, Any]) -> LogisticRegression:
    weights, text = find_file(name, HEAD), find_file(name, HEAD_JSON)
    if weights is not None:
        arrays: dict[str, Any] = load_file(weights)
    elif text is not None:
        arrays = json.loads(text.read_bytes())
    else:
        message = f"{name!r}: the head {PICKLE} is a pickle, which can execute code"
        pickle = find_file(name, PICKLE)
        differentiable = pickle is not None and b"SetFitHead" in pickle.read_bytes()
        raise ConfigError(message, TO_JSON + (DIFFERENTIABLE if differentiable else REGRESSION))
    path = weights or text
    if arrays.get("multitarget"):
        message = f"{path}: a head of several labels per text, expected one label per text"
        raise ConfigError(message, "not supported: train it here with task.kind=multi_label")
    try:
        coef_KH = torch.as_tensor(arrays["coef"], dtype=torch.float64)
        intercept_K = torch.as_tensor(arrays["intercept"], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        message = f"{path}: expected numbers at coef and intercept"
        raise ConfigError(message, TO_JSON + REGRESSION) from error
    classes = 2 if len(coef_KH) == 1 else len(coef_KH)
    names = fields.get("labels") or arrays.get("classes") or range(classes)
    if coef_KH.ndim != 2 or intercept_K.shape != (len(coef_KH),) or len(names) != classes:  # noqa: PLR2004
        message = (
            f"{path}: coef has the shape {[*coef_KH.shape]}, intercept {[*intercept_K.shape]}, and "
            f"it has {counted(len(names), 'label')}: they do not fit"
        )
        raise ConfigError(message, f"correct labels in {SETTINGS}, or save the head again")
    return LogisticRegression(
        coef_KH=coef_KH, intercept_K=intercept_K, classes=tuple(map(str, names))
    )


def _pooling(name: str, *, normalized: bool) -> PoolingSettings:
    """Read the modules after the encoder."""
    path = find_file(name, MODULES)
    if path is None:
        message = f"{name!r} has no {MODULES}, expected a folder of sentence-transformers"
        raise ConfigError(message, "save the model again with SetFit")
    entries: list[dict[str, str]] = json.loads(path.read_bytes())
    modules = [(entry["type"].rpartition(".")[2], entry["path"]) for entry in entries]
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        message = f"{name!r} has the modules {', '.join(kinds)}"
        raise ConfigError(message, "supported: Transformer, Pooling and perhaps Normalize")
    fields = read_json(name, f"{modules[1][1]}/config.json")
    modes = [key for key, value in fields.items() if key.startswith("pooling_mode_") and value]
    modes = modes or [f"pooling_mode_{fields.get('pooling_mode')}"]
    supported = {
        "pooling_mode_mean_tokens": PoolingMode.MEAN,
        "pooling_mode_mean": PoolingMode.MEAN,
        "pooling_mode_cls_token": PoolingMode.CLS,
        "pooling_mode_cls": PoolingMode.CLS,
    }
    if len(modes) != 1 or modes[0] not in supported:
        message = f"{name!r} has the pooling {', '.join(modes)}"
        raise ConfigError(message, "supported: the mean of the tokens, or the cls token")
    return PoolingSettings(mode=supported[modes[0]], normalize=normalized or "Normalize" in kinds)


def _encoder(name: str, allow_unused: Collection[str]) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Return the encoder, and findings about its weights."""
    refuse_custom_code(name)
    config = read_config(name)
    check_family(name, config)
    model, loading = AutoModel.from_pretrained(
        name, dtype=torch.float32, output_loading_info=True, **no_pooler(config)
    )
    check_weights(name, model, loading)
    return model.eval(), check_unused(name, model, loading, allow_unused, "pooler.")


def _fill(module: nn.Module | None, head: LogisticRegression, name: str) -> None:
    """Write the weights of the logistic regression into the pooling head."""
    assert isinstance(module, PoolingHead)
    weight_CH, bias_C = head.coef_KH, head.intercept_K
    if len(weight_CH) == 1:  # a score of the second class; the first has 0
        weight_CH = torch.cat([torch.zeros_like(weight_CH), weight_CH])
        bias_C = torch.cat([torch.zeros_like(bias_C), bias_C])
    if weight_CH.shape != module.out.weight.shape:
        width = module.out.weight.shape[1]
        message = (
            f"{name!r}: the head reads states of {weight_CH.shape[1]}, the encoder has {width}"
        )
        raise ConfigError(message, "check that the head belongs to the encoder")
    with torch.no_grad():
        module.out.weight.copy_(weight_CH)
        module.out.bias.copy_(bias_C)


class SentenceClassifier(nn.Module):
    """The source, computed step by step as sentence-transformers and scikit-learn do."""

    def __init__(
        self, encoder: PreTrainedModel, pooling: PoolingSettings, head: LogisticRegression
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.regression = head

    def forward(self, attention_mask: torch.Tensor, **inputs: torch.Tensor) -> SimpleNamespace:
        """Return an object with `logits` [B, C]."""
        states_BTH = self.encoder(attention_mask=attention_mask, **inputs).last_hidden_state
        if self.pooling.mode is PoolingMode.CLS:
            state_BH = states_BTH[:, 0]
        else:
            mask_BT1 = attention_mask[..., None].float()
            state_BH = (states_BTH * mask_BT1).sum(1) / mask_BT1.sum(1)
        if self.pooling.normalize:
            state_BH = functional.normalize(state_BH, dim=1)
        return SimpleNamespace(logits=self.regression.logits(state_BH))


def _reopen(
    name: str, allow_unused: Collection[str], pooling: PoolingSettings, head: LogisticRegression
) -> nn.Module:
    with opening(name):
        return SentenceClassifier(_encoder(name, allow_unused)[0], pooling, head)
