"""An encoder with a head: a checkpoint that AutoModel opens, or a preset from scratch.

Shapes: B rows, T tokens, H width of the encoder, C classes.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging as transformers_logging

from pipework.errors import ConfigError, RunFolderError
from pipework.run_folder.task import Task
from pipework.text.padding import Padding
from pipework.train.config.model import Head, HeadSettings, ModelSettings, Preset
from pipework.train.model import families, ngram_embeddings
from pipework.train.model.families import pooled
from pipework.train.model.heads import States, make_head, to_column_0
from pipework.train.model.presets import preset_config
from pipework.train.model.pretrained import Names, check_vocabulary, no_pooler, open_pretrained

# Shapes: B rows, T tokens, H width of the encoder.


@dataclass
class Given(BaseModelOutputWithPooling):  # type: ignore[misc]
    """What the standard models read of their encoder's output."""

    mems: torch.Tensor | None = None  # XLNet's memory of earlier texts, which is not used


class GivenStates(nn.Module):
    """Stands where the encoder stood; the encoder's own pooler still works on the states."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        """Stand in for an encoder."""
        super().__init__()
        self._encoder = (encoder,)  # in a tuple: its parameters are not this module's
        self.config = encoder.config

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> Given:
        """Return the states [B, T, H] that came in place of embeddings."""
        made = pooled(self._encoder[0], inputs_embeds)
        return Given(last_hidden_state=inputs_embeds, pooler_output=made)


def without_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model that shares the head of `model` and computes it from `inputs_embeds`."""
    shell = copy.copy(model)
    given = GivenStates(model.base_model)
    shell._modules = model._modules | {model.base_model_prefix: given}  # noqa: SLF001
    return shell


HEAD_FILE, HEAD_WEIGHTS = "head.json", "head.safetensors"


class Classifier(nn.Module):
    """An encoder with a head, behind one signature for every family and head.

    A linear head is the family's own: `model` is then its standard model for sequence
    classification. With any other, `model` is the encoder and `head` reads its last states.

    Attributes:
        config: the encoder's, as transformers has it.
        classes: C, the number of logits.
    """

    def __init__(self, model: PreTrainedModel, settings: HeadSettings) -> None:
        """Take over a model, and make the head unless it is part of the model."""
        super().__init__()
        self.model = model
        self.config = model.config
        self.classes = int(model.config.num_labels)
        self.settings = settings
        self._left = families.reads_last(model.config)
        self.head: States | None = None
        if settings.head is not Head.LINEAR:
            width = int(model.config.hidden_size)
            self.head = make_head(settings, width=width, classes=self.classes, cls_last=self._left)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits [B, C]; all inputs are int64 [B, T], `entity_spans` int64 [B, 4]."""
        if self.head is not None:
            states_BTH = self.states(input_ids, attention_mask, token_type_ids)
            return self.from_states(states_BTH, attention_mask, entity_spans)
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).logits
        return logits

    def states(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the encoder's last hidden states [B, T, H]."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states_BTH: torch.Tensor = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).last_hidden_state
        return states_BTH

    def from_states(
        self,
        states_BTH: torch.Tensor,
        attention_mask: torch.Tensor,
        entity_spans: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits [B, C] that follow from the encoder's last hidden states."""
        if self.head is None:  # a linear head reads the marks of entities in the text
            shell = without_encoder(self.model)
            logits: torch.Tensor = shell(
                inputs_embeds=states_BTH, attention_mask=attention_mask
            ).logits
            return logits
        mask_BT, spans_B4 = attention_mask, entity_spans
        if self._left:
            states_BTH, mask_BT, spans_B4 = to_column_0(states_BTH, mask_BT, spans_B4)
        answer: torch.Tensor = self.head(states_BTH, mask_BT, spans_B4)
        return answer

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def encoder(self) -> PreTrainedModel:
        """The encoder without the head."""
        encoder: PreTrainedModel = self.model.base_model if self.head is None else self.model
        return encoder

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits."""
        return tuple(self.config.id2label[index] for index in range(self.classes))

    def layers(self) -> list[list[nn.Parameter]]:
        """Return what trains, by depth: embeddings, each layer, and at last the head.

        Every trainable parameter is in one group; a group may be empty. The encoder's pooler
        counts as part of the head.
        """
        groups = [
            *families.depths(self.encoder),
            list(families.of_head(self, self.encoder)),
        ]
        return [[one for one in group if one.requires_grad] for group in groups]

    def freeze(self) -> None:
        """Keep what makes the last hidden states as it is; the head and a pooler still train."""
        for group in families.depths(self.encoder):
            for parameter in group:
                parameter.requires_grad = False

    def gradient_checkpointing(self) -> None:
        """Compute activations again in the backward pass instead of keeping them.

        Raises:
            ConfigError: the family's code cannot.
        """
        families.checkpoint_activations(self.model)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and config to a folder that `open_checkpoint` opens.

        With a head of our own the folder is the encoder's, with two files of the head beside it.
        """
        self.model.save_pretrained(folder)
        if self.head is not None:
            weights = {name: one.contiguous() for name, one in self.head.state_dict().items()}
            save_file(weights, folder / HEAD_WEIGHTS)
            chosen = {name: getattr(self.settings, name) for name in HeadSettings.model_fields}
            text = HeadSettings(**chosen).model_dump_json(indent=2)
            (folder / HEAD_FILE).write_text(text + "\n", encoding="utf-8")


def build(settings: ModelSettings, tokenizer: Tokenizer, task: Task) -> Classifier:
    """Return a model in float32 whose logits are in the order of the task's labels.

    Raises:
        ConfigError: the checkpoint cannot be opened, or does not fit the tokenizer or the length.
    """
    quiet()  # a new head is what fine-tuning means
    names = Names.of(task)
    if settings.preset is not None:
        classifier = Classifier(_preset(settings, settings.preset, tokenizer, names), settings)
    else:
        name = str(settings.name)
        classifier = Classifier(open_pretrained(settings, name, names), settings)
        check_vocabulary(name, tokenizer, int(classifier.config.vocab_size))
        ngram_embeddings.restore(classifier.encoder, Path(name))
        _check_length(settings, name, classifier)
    ngram_embeddings.add(classifier.encoder, settings.ngrams, tokenizer)
    if settings.freeze:
        classifier.freeze()
    return classifier


def open_checkpoint(folder: Path, attention: str | None = None) -> Classifier:
    """Load a run's checkpoint afresh, in float32 and in evaluation mode.

    `attention` is "eager" where a graph is traced, else the library's choice for the family.

    Raises:
        RunFolderError: the head's files are not what this version writes.
    """
    quiet()
    settings = _head_settings(folder / HEAD_FILE)
    linear = settings.head is Head.LINEAR
    kind = AutoModelForSequenceClassification if linear else AutoModel
    model = kind.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=attention,
        local_files_only=True,
        **({} if linear else no_pooler(AutoConfig.from_pretrained(folder))),
    )
    classifier = Classifier(model, settings)
    ngram_embeddings.restore(classifier.encoder, folder)
    if classifier.head is not None:
        classifier.head.load_state_dict(load_file(folder / HEAD_WEIGHTS))
    return classifier.eval()


def padding_of(model: Classifier) -> Padding:
    """Return how the family fills up a batch."""
    return families.padding(model.encoder)


def unreached(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the trainable parameters that no loss reaches, given a tiny batch.

    They are in the checkpoint's format and not in its answer, such as XLNet's mask embedding.
    """
    was_training = model.training
    model.eval().zero_grad(set_to_none=True)
    model(**inputs).sum().backward()
    trainable = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
    names = [name for name, one in trainable if one.grad is None]
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    return names


def quiet() -> None:
    """Let transformers say nothing of weights that it misses or makes."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _head_settings(path: Path) -> HeadSettings:
    if not path.is_file():
        return HeadSettings()
    try:
        return HeadSettings.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{path} does not describe a head: {first['loc']}: {first['msg']}"
        raise RunFolderError(message, "train again with this version") from error


def _preset(
    settings: ModelSettings, preset: Preset, tokenizer: Tokenizer, names: Names
) -> PreTrainedModel:
    config = preset_config(settings, preset, tokenizer)
    names.write(config)
    if settings.head is Head.LINEAR:
        return AutoModelForSequenceClassification.from_config(config)
    return AutoModel.from_config(config, add_pooling_layer=False)


def _check_length(settings: ModelSettings, name: str, model: Classifier) -> None:
    # Families count their positions differently (RoBERTa starts at the pad id), so it is tried.
    longest_BT = torch.full((1, settings.max_length), int(model.config.vocab_size) - 1)
    try:
        with torch.inference_mode():
            model.eval().states(longest_BT, torch.ones_like(longest_BT))
    except (IndexError, RuntimeError) as error:
        positions = getattr(model.config, "max_position_embeddings", "fewer")
        message = f"model.max_length {settings.max_length}: {name!r} has {positions} positions"
        raise ConfigError(message, "lower model.max_length") from error
