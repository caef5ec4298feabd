"""Read a model whose Python code is stored with its weights, as a class of transformers.

The code runs with the user's permission only. It reads the weights, and it is the reference of the
comparison. The run folder gets the class of transformers with the same weights, because engines
are built from these classes; the comparison shows whether the code computes the same.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from pipework.errors import ConfigError, PipeError
from pipework.export.importing.adapters import read_json
from pipework.run_folder.files import file_digest
from pipework.train.data.tokenizer import summary
from pipework.train.model.encoder_configs import OWN_KEYS
from pipework.train.model.pretrained import listing

CLASSIFIER = "AutoModelForSequenceClassification"
SAVE_AGAIN = "save it with a class of transformers, then import that folder"
TRUST = (
    "read it, and add --trust-remote-code if you trust it; or --as FAMILY, if its modules and "
    "weights are those of a family of transformers; or " + SAVE_AGAIN
)
PACKAGE = "transformers_modules"  # of all code that transformers loads


def custom_classes(name: str, file: str = "config.json") -> dict[str, Any]:
    """Return the classes of a source by the class of transformers that they replace.

    The file is read as JSON, because transformers may ask in the terminal whether to run the code.
    """
    fields: object = read_json(name, file)
    return (fields.get("auto_map") if isinstance(fields, dict) else None) or {}


def refuse_custom_code(name: str, *, trust_possible: bool = False) -> None:
    """Refuse a source that needs its own code; `trust_possible` if a flag can allow it.

    Raises:
        ConfigError: it does.
    """
    if custom_classes(name):
        message = f"{name!r} needs code of its own (auto_map in config.json), which can do anything"
        raise ConfigError(message, TRUST if trust_possible else SAVE_AGAIN)


@dataclass(frozen=True, kw_only=True)
class CustomCode:
    """The code of a source.

    Attributes:
        name: the folder or hub id.
        classifier: whether the classifier is a class of its own, or only its config.
        packages: the packages of the loaded classes.
    """

    name: str
    classifier: bool
    packages: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, name: str) -> "CustomCode | None":
        """Return the code of a source; None if it has none."""
        classes = custom_classes(name)
        return cls(name=name, classifier=CLASSIFIER in classes) if classes else None

    def config(self) -> PreTrainedConfig:
        """Return the config of the source.

        Raises:
            ConfigError: the code fails, as in the other methods.
        """
        with self._errors():
            return AutoConfig.from_pretrained(self.name, trust_remote_code=True)

    def open(self) -> torch.nn.Module:
        """Open the source with its own classes."""
        with self._errors():
            model: torch.nn.Module = AutoModelForSequenceClassification.from_pretrained(
                self.name, trust_remote_code=True, dtype=torch.float32
            )
            return model

    def load(self, config: PreTrainedConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the weights in the class of transformers, and what transformers reported.

        Raises:
            ConfigError: that class has other weights.
        """
        with self._errors():
            custom, loading = AutoModelForSequenceClassification.from_pretrained(
                self.name,
                config=config,
                trust_remote_code=True,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        kinds = (*type(custom).__mro__, *type(config).__mro__)
        packages = {kind.__module__.rpartition(".")[0] for kind in kinds}
        self.packages.update(name for name in packages if name.partition(".")[0] == PACKAGE)
        model = self._rebuilt(config)
        shapes, own = _shapes(model), _shapes(custom)
        different = sorted(
            name for name in shapes.keys() | own.keys() if shapes.get(name) != own.get(name)
        )
        if different:
            message = (
                f"{self.name!r}: {type(custom).__name__} has other weights than "
                f"{type(model).__name__} of transformers: {listing(different)}"
            )
            raise ConfigError(message, "expected its modules: engines are built from that class")
        model.load_state_dict(custom.state_dict(), strict=False)
        return model, loading

    def _rebuilt(self, config: PreTrainedConfig) -> PreTrainedModel:
        """Return a new model of the class of transformers for a config or its base class."""
        known = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        bases = [
            kind for kind in type(config).__mro__ if kind.__module__.startswith("transformers.")
        ]
        base = next((kind for kind in bases if kind in known), None)
        if base is None:
            message = (
                f"{self.name!r}: {type(config).__name__} is not derived from a config of "
                "transformers for sequence classification"
            )
            raise ConfigError(message, "expected such a config: engines are built from its class")
        fields = {key: value for key, value in config.to_dict().items() if key not in OWN_KEYS}
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(
            base(**fields), dtype=torch.float32
        )
        return model

    def executed_files(self) -> dict[str, str]:
        """Return the digests of the files from which the loaded classes are, by name."""
        modules = [
            module
            for name, module in sys.modules.items()
            if name.rpartition(".")[0] in self.packages and getattr(module, "__file__", None)
        ]
        paths = sorted(
            (Path(str(module.__file__)) for module in modules), key=lambda path: path.name
        )
        return {path.name: file_digest(path) for path in paths if path.name != "__init__.py"}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except PipeError:
            raise
        except Exception as error:  # of code that can do anything
            message = f"{self.name!r}: its code or its files cannot be loaded: {summary(error)}"
            raise ConfigError(message, "open it with transformers and trust_remote_code") from error


def _shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in model.state_dict().items()}
