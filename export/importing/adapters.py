"""LoRA adapters of peft (Hu et al. 2021, https://arxiv.org/abs/2106.09685) on a base model."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import cached_file

from pipework.errors import ConfigError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
HEADS = ("classifier", "score", "out_proj", "head", "logits_proj")  # names in transformers
LORA = ".lora_"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter with its own classification head.

    Attributes:
        name: its folder or hub id.
        base: the folder or hub id of the base model.
        labels: the number of rows of the head.
        weights: the names of its weights: matrices that are added to weights of the base, and
            weights that replace weights of the base, such as the head.
    """

    name: str
    base: str
    labels: int
    weights: tuple[str, ...]

    @classmethod
    def of(cls, name: str) -> "Adapter | None":
        """Return the adapter of a source; None if it is a whole model.

        Raises:
            ConfigError: it is not a LoRA adapter for sequence classification, or has no head.
        """
        path = find_file(name, CONFIG)
        if path is None:
            return None
        fields = json.loads(path.read_bytes())
        found = (fields.get("peft_type"), fields.get("task_type"))
        if found != ("LORA", "SEQ_CLS"):
            message = f"{name!r} is an adapter of type {found[0]} for {found[1]}"
            raise ConfigError(message, "expected LORA for SEQ_CLS: merge it, then import the model")
        weights = find_file(name, WEIGHTS)
        if weights is None:
            message = f"{name!r} has no {WEIGHTS}"
            raise ConfigError(message, "save the adapter with safetensors")
        with safe_open(weights, framework="pt") as stored:
            shapes = {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118  (no mapping)
        rows = [shapes[key][0] for key in shapes if _is_head(key) and key.endswith("weight")]
        if not rows:
            message = f"{name!r} has no classification head, only layers of the encoder"
            raise ConfigError(message, 'train it with modules_to_save=["classifier"]')
        base = fields.get("base_model_name_or_path")
        if not base:
            message = f"{name!r}: {CONFIG} has no base_model_name_or_path"
            raise ConfigError(message, "add the folder or hub id of the base model")
        return cls(
            name=name,
            base=str(base),
            labels=min(rows),
            weights=tuple(sorted(shapes)),
        )

    def apply(self, model: PreTrainedModel) -> nn.Module:
        """Return the base model with the adapter next to its weights."""
        from peft import PeftModel  # noqa: PLC0415  (an extra)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses names of older transformers
            adapted: nn.Module = PeftModel.from_pretrained(model, self.name).eval()
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
            return any(LORA not in key and key.endswith(f".{name}") for key in self.weights)

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


def find_revision(name: str) -> str | None:
    """Return the commit of the files of a hub id; None for a folder."""
    if Path(name).is_dir():
        return None
    paths = (find_file(name, file) for file in (CONFIG, "config.json", "bert_config.json"))
    path = next(filter(None, paths), None)
    # The cache of huggingface_hub stores a file as snapshots/COMMIT/FILE.
    return None if path is None else path.parent.name


def _is_head(key: str) -> bool:
    return any(part in HEADS for part in key.split(".")) and LORA not in key
