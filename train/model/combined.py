"""Several heads on one encoder, from the checkpoints of runs that have the same encoder.

A folder of such a model has the checkpoint of the first head, and two files for the other heads:
their configs, and their weights without the shared encoder.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from pipework.errors import ConfigError, RunFolderError
from pipework.train.config.model import Head, HeadSettings
from pipework.train.model import families
from pipework.train.model.classifier import Classifier, model_class, open_checkpoint
from pipework.train.model.pretrained import no_pooler

HEADS_FILE, HEADS_WEIGHTS = "heads.json", "heads.safetensors"
POOLER = "pooler"  # part of an encoder of transformers, but trained with a frozen encoder


class CombinedClassifier(Classifier):
    """A classifier with further heads, whose logits follow those of its own, [B, C of all heads].

    If a head has a row of logits for each token, the logits of the other heads are repeated for
    each token of a text.
    """

    def __init__(self, heads: Mapping[str, Classifier]) -> None:
        """Let all heads use the encoder of the first one, see `check_encoders`."""
        names, (first, *others) = tuple(heads), heads.values()
        super().__init__(first.model, first.settings)
        self.head = first.head
        for other in others:
            _share(first.encoder, other.encoder)
        self.others = nn.ModuleList(others)
        self.names = names
        self._all = (first, *others)  # a tuple: the first one's modules are registered above
        self.classes = sum(head.classes for head in self._all)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all heads, as `HEAD/LABEL`."""
        heads = zip(self.names, self._all, strict=True)
        return tuple(f"{name}/{label}" for name, head in heads for label in head.labels)

    @property
    def reads_first_only(self) -> bool:
        """Whether all heads read only the state of the first token."""
        return all(head.reads_first_only for head in self._all)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits of all heads; see `Classifier`."""
        states_BTH = self.states(input_ids, attention_mask, token_type_ids)
        return self.from_states(states_BTH, attention_mask, entity_spans)

    def from_states(
        self,
        states_BTH: torch.Tensor,
        attention_mask: torch.Tensor,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits of all heads; see `Classifier`."""
        found = [head.from_states(states_BTH, attention_mask, entity_spans) for head in self._all]
        if any(head.per_token for head in self._all):
            is_token_BT = attention_mask != 0
            found = [
                logits if head.per_token else _of_tokens(logits, is_token_BT)
                for head, logits in zip(self._all, found, strict=True)
            ]
        return torch.cat(found, dim=1)

    def save(self, folder: Path) -> None:
        """Write the folder that `open_saved` reads."""
        self._all[0].save(folder)
        shared = {tensor.data_ptr() for tensor in _shared(self.encoder).values()}
        weights: dict[str, torch.Tensor] = {}
        for number, other in enumerate(self.others):
            own = ((name, value) for name, value in other.state_dict().items())
            weights |= {
                f"{number}.{name}": value.contiguous()
                for name, value in own
                if value.data_ptr() not in shared
            }
        save_file(weights, folder / HEADS_WEIGHTS)
        others = [
            {
                "config": head.config.to_dict(),
                "settings": head.head_settings.model_dump(mode="json"),
            }
            for head in self._all[1:]
        ]
        text = json.dumps({"names": self.names, "others": others}, indent=2, ensure_ascii=False)
        (folder / HEADS_FILE).write_text(f"{text}\n", encoding="utf-8")


def _of_tokens(logits_BC: torch.Tensor, is_token_BT: torch.Tensor) -> torch.Tensor:
    """Return the logits of a text for each of its tokens."""
    return logits_BC[:, None].expand(-1, is_token_BT.shape[1], -1)[is_token_BT]


def _shared(encoder: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights of an encoder that all heads share."""
    weights = encoder.state_dict()
    return {name: value for name, value in weights.items() if not name.startswith(f"{POOLER}.")}


def _share(source: PreTrainedModel, encoder: PreTrainedModel) -> None:
    """Use the modules and weights of `source` in an encoder, but for the pooler."""
    for name, module in source.named_children():
        if name != POOLER:
            setattr(encoder, name, module)
    for name, parameter in source.named_parameters(recurse=False):
        setattr(encoder, name, parameter)


def check_encoders(names: Mapping[str, Classifier]) -> None:
    """Check that classifiers have the same encoder, so that the first computes the states for all.

    Raises:
        ConfigError: the first two whose encoders differ, or a family whose heads read no states.
    """
    (first_name, first), *others = names.items()
    if first.config.model_type in families.ENCODER_DECODERS:
        message = f"{first_name} is of the family {first.config.model_type}, which has a decoder"
        raise ConfigError(message, "combine models that are encoders only")
    expected = _shared(first.encoder)
    for name, other in others:
        found = _shared(other.encoder)
        different = [
            weight
            for weight in expected.keys() | found.keys()
            if weight not in expected
            or weight not in found
            or not torch.equal(expected[weight], found[weight])
        ]
        if different:
            message = (
                f"the encoder of {name} is not the encoder of {first_name}: {len(different)} of "
                f"{len(expected)} weights differ, such as {min(different)}"
            )
            hint = "train each run from the same model.name with model.freeze = true"
            raise ConfigError(message, hint)


def open_saved(folder: Path, attention: str | None = None) -> Classifier:
    """Load a checkpoint as `open_checkpoint` does, with all of its heads."""
    first = open_checkpoint(folder, attention)
    if not (folder / HEADS_FILE).is_file():
        return first
    saved = json.loads((folder / HEADS_FILE).read_bytes())
    weights = load_file(folder / HEADS_WEIGHTS)
    heads = [first]
    for number, fields in enumerate(saved["others"]):
        settings = HeadSettings.model_validate(fields["settings"])
        config = AutoConfig.for_model(**fields["config"])
        linear = settings.head is Head.LINEAR
        kind = model_class(config) if linear else AutoModel
        with torch.device("meta"):  # without memory: the weights are in the files
            model = kind.from_config(config, **({} if linear else no_pooler(config)))
        heads.append(Classifier(model, settings))
        _share(first.encoder, heads[-1].encoder)
        prefix = f"{number}."
        own = {
            name.removeprefix(prefix): weights[name] for name in weights if name.startswith(prefix)
        }
        heads[-1].load_state_dict(own, strict=False, assign=True)  # without the shared encoder
        if any(parameter.is_meta for parameter in heads[-1].parameters()):
            message = (
                f"{folder / HEADS_WEIGHTS} lacks weights of the head {saved['names'][number + 1]}"
            )
            raise RunFolderError(message, "combine the runs again with this version")
    return CombinedClassifier(dict(zip(saved["names"], heads, strict=True))).eval()
