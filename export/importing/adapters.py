"""Adapters of peft on a base model, of the types that can be merged into its weights.

LoRA is https://arxiv.org/abs/2106.09685 (Hu et al. 2021), IA3 is https://arxiv.org/abs/2205.05638
(Liu et al. 2022), LoHa and LoKr are https://arxiv.org/abs/2309.14859 (Yeh et al. 2023).
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from pipework.errors import ConfigError
from pipework.train.model.pretrained import opening

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
HEADS = ("classifier", "score", "out_proj", "head", "logits_proj")  # names in transformers
TYPES = ("LORA", "IA3", "LOHA", "LOKR")
MERGED = (".lora_", ".ia3_", ".hada_", ".lokr_")  # in the names of weights that are merged
BASE = "base_model_name_or_path"
BASE_CONFIGS = ("config.json", "bert_config.json")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter with its own classification head.

    Attributes:
        name: its folder or hub id.
        base: the folder or hub id of the base model.
        labels: the number of rows of the head.
        type: the method, as peft names it.
        weights: the names of its weights: matrices that are added to weights of the base, and
            weights that replace weights of the base, such as the head.
    """

    name: str
    base: str
    labels: int
    type: str
    weights: tuple[str, ...]

    @classmethod
    def of(cls, name: str, base: str | None = None) -> "Adapter | None":
        """Return the adapter of a source; None if it is a whole model.

        Args:
            name: a folder or hub id.
            base: replaces the base model that the adapter names.

        Raises:
            ConfigError: it is not an adapter for sequence classification, or has no head.
        """
        if find_file(name, CONFIG) is None:
            if base is not None:
                message = f"adapter_base is set, and {name!r} has no {CONFIG}"
                raise ConfigError(message, "remove adapter_base: the source is not an adapter")
            return None
        fields = read_json(name, CONFIG)
        kind, task = fields.get("peft_type"), fields.get("task_type")
        if kind not in TYPES or task != "SEQ_CLS":
            message = f"{name!r} is an adapter of type {kind} for {task}"
            hint = f"expected {', '.join(TYPES)} for SEQ_CLS: merge it, then import the model"
            raise ConfigError(message, hint)
        shapes = _shapes(name)
        rows = [shapes[key][0] for key in shapes if _is_head(key) and key.endswith("weight")]
        if not rows:
            message = f"{name!r} has no classification head, only layers of the encoder"
            raise ConfigError(message, 'train it with modules_to_save=["classifier"]')
        base = base or fields.get(BASE)
        if not base:
            message = f"{name!r}: {CONFIG} has no {BASE}"
            raise ConfigError(message, "--set adapter_base=MODEL, a folder or hub id")
        beside = Path(name) / base  # peft resolves a relative path in the current folder only
        return cls(
            name=name,
            base=str(beside if beside.is_dir() and not Path(base).is_dir() else base),
            labels=min(rows),
            type=kind,
            weights=tuple(sorted(shapes)),
        )

    def check_base(self) -> None:
        """Check that the base model is found.

        Raises:
            ConfigError: it is not.
        """
        reason = f"{self.base!r} has no config.json, or cannot be downloaded"
        try:
            with opening(self.base):
                if any(find_file(self.base, file) for file in BASE_CONFIGS):
                    return
        except ConfigError as error:
            reason = str(error)
        message = f"the base of the adapter {self.name!r}: {reason}"
        raise ConfigError(message, "name it: --set adapter_base=FOLDER")

    def apply(self, model: PreTrainedModel) -> nn.Module:
        """Return the base model with the adapter next to its weights."""
        from peft import PeftModel  # noqa: PLC0415  (an extra)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses names of older transformers
            adapted: PeftModel = PeftModel.from_pretrained(model, self.name).eval()
        # peft looks up the embeddings of the base under this name.
        adapted.peft_config["default"].base_model_name_or_path = self.base
        return adapted

    def merge(self, model: PreTrainedModel) -> tuple[PreTrainedModel, set[str]]:
        """Return the base model with the adapter added, and the weights that match nothing."""
        from peft import get_peft_model_state_dict  # noqa: PLC0415  (an extra)

        adapted: Any = self.apply(model)
        unused = {*self.weights} - get_peft_model_state_dict(adapted).keys()
        merged: PreTrainedModel = adapted.merge_and_unload()
        return merged, unused

    def without_head(self, loading: Mapping[str, Any]) -> dict[str, Any]:
        """Return what transformers reported for the base, without the adapter's own weights."""

        def own(name: str) -> bool:
            return any(key.endswith(f".{name}") and not _is_merged(key) for key in self.weights)

        missing, mismatched = loading["missing_keys"], loading["mismatched_keys"]
        return {
            **loading,
            "missing_keys": {name for name in missing if not own(name)},
            "mismatched_keys": {entry for entry in mismatched if not own(entry[0])},
        }


def find_file(name: str, file: str) -> Path | None:
    """Return a file of a folder or of a hub id; None if there is none."""
    folder = Path(name)
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    path = cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if path is None else Path(path)


def read_json(name: str, file: str) -> dict[str, Any]:
    """Return the fields of a JSON file of a folder or of a hub id; empty if there is none."""
    path = find_file(name, file)
    fields: dict[str, Any] = {} if path is None else json.loads(path.read_bytes())
    return fields


def find_revision(name: str) -> str | None:
    """Return the commit of the files of a hub id; None for a folder."""
    if Path(name).is_dir():
        return None
    paths = (find_file(name, file) for file in (CONFIG, *BASE_CONFIGS))
    path = next(filter(None, paths), None)
    # The cache of huggingface_hub stores a file as snapshots/COMMIT/FILE.
    return None if path is None else path.parent.name


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the stored weights of an adapter, by name."""
    if path := find_file(name, WEIGHTS):
        with safe_open(path, framework="pt") as stored:
            return {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118  (no mapping)
    if path := find_file(name, PICKLE):
        stored = torch.load(path, map_location="meta", weights_only=True)
        return {key: tuple(values.shape) for key, values in stored.items()}
    message = f"{name!r} has neither {WEIGHTS} nor {PICKLE}"
    raise ConfigError(message, "save the adapter again: save_pretrained of peft")


def _is_head(key: str) -> bool:
    return any(part in HEADS for part in key.split(".")) and not _is_merged(key)


def _is_merged(key: str) -> bool:
    return any(mark in key for mark in MERGED)
