"""The classifier: a pretrained encoder or a preset, with a head.

Shapes: B rows, T tokens, H width of the encoder, C classes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from pipework.errors import RunFolderError
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.task import TargetScale, Task
from pipework.text.padding import Padding
from pipework.train.config.model import Head, HeadSettings, ModelSettings, Preset
from pipework.train.model import bag_of_ngrams, families, ngram_embeddings
from pipework.train.model.encoder_configs import preset_config
from pipework.train.model.families import without_encoder
from pipework.train.model.heads import StatesHead, make_head, to_column_0
from pipework.train.model.pretrained import (
    LabelNames,
    check_length,
    check_vocabulary,
    linear_model_class,
    no_pooler,
    open_pretrained,
)

bag_of_ngrams.register()
HEAD_FILE, HEAD_WEIGHTS = "head.json", "head.safetensors"


class Classifier(nn.Module):
    """An encoder with a head, with the same signature for every family and head.

    With a linear head, `model` is the sequence classification model of transformers. With another
    head, `model` is the encoder and `head` reads its last states.

    Attributes:
        config: the config of the encoder in transformers.
        classes: C, the number of logits.
        target_scale: scale of the targets during the training of a regression: the last layer
            returns standardised values, `forward` and a saved checkpoint values on the scale.
        has_trained_head: whether the checkpoint that training starts from contained the head.
        per_token: whether the logits have a row for each token, not for each text.
    """

    def __init__(self, model: PreTrainedModel, settings: HeadSettings) -> None:
        """Wrap a model, and create the head unless it is part of the model."""
        super().__init__()
        self.model = model
        self.config = model.config
        self.classes = int(model.config.num_labels)
        self.settings = settings
        self.target_scale: TargetScale | None = None
        self.has_trained_head = False
        self.per_token = is_per_token(type(model).__name__)
        self._left = families.reads_last(model.config)
        self._activation = families.output_activation(model.config)
        self.head: StatesHead | None = None
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
        """Return logits [B, C], or [tokens of all rows, C] if they are `per_token`.

        All inputs are int64 [B, T], `entity_spans` int64 [B, 4].
        """
        if self.head is not None:
            states_BTH = self.states(input_ids, attention_mask, token_type_ids)
            return self.from_states(states_BTH, attention_mask, entity_spans)
        if self.config.model_type in families.ENCODER_DECODERS:
            return self._of_last_states(self.states(input_ids, attention_mask), attention_mask)
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).logits
        return self._outputs(logits, attention_mask)

    def _of_last_states(
        self, states_BTH: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits of BART's head, which reads the last token of a text.

        BART itself searches the token by its id, and fails for a text without it.
        """
        last_B = attention_mask.sum(dim=1) - 1
        index_B1H = last_B[:, None, None].expand(-1, 1, int(self.config.hidden_size))
        states_BH = states_BTH.gather(1, index_B1H).squeeze(1)
        return self._outputs(self.model.classification_head(states_BH), attention_mask)

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
        """Return logits [B, C] from the last hidden states of the encoder."""
        if self.head is None:  # a linear head needs no spans: entities are marked in the text
            shell = without_encoder(self.model)
            logits: torch.Tensor = shell(
                inputs_embeds=states_BTH, attention_mask=attention_mask
            ).logits
            return self._outputs(logits, attention_mask)
        mask_BT, spans_B4 = attention_mask, entity_spans
        if self._left:
            states_BTH, mask_BT, spans_B4 = to_column_0(states_BTH, mask_BT, spans_B4)
        head_logits: torch.Tensor = self.head(states_BTH, mask_BT, spans_B4)
        return self._outputs(head_logits, mask_BT)

    def standardise(self, scale: TargetScale) -> None:
        """Set the scale of the targets; a head that was trained before keeps its values."""
        self.target_scale = scale
        if self.has_trained_head:
            with torch.no_grad():
                layer = self._last_layer()
                layer.weight.div_(scale.std)
                layer.bias.sub_(scale.mean).div_(scale.std)

    def _outputs(self, logits_BC: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return logits after the activation of the model, on the scale of the targets."""
        if self.per_token:
            logits_BC = logits_BC[mask_BT != 0]
        if self._activation is not None:
            logits_BC = self._activation(logits_BC)
        if self.target_scale is None:
            return logits_BC
        # float32: bf16 could not represent small differences between large targets.
        return logits_BC.float() * self.target_scale.std + self.target_scale.mean

    @property
    def head_settings(self) -> HeadSettings:
        """The settings of the head, without those of the encoder."""
        fields = {name: getattr(self.settings, name) for name in HeadSettings.model_fields}
        return HeadSettings(**fields)

    @property
    def reads_first_only(self) -> bool:
        """Whether the head reads only the state of the first token."""
        pools_all = getattr(self.config, "classifier_pooling", "cls") == "mean"
        return self.settings.head is Head.LINEAR and not pools_all and not self.per_token

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def encoder(self) -> PreTrainedModel:
        """The encoder without the head."""
        encoder: PreTrainedModel = self.model.base_model if self.head is None else self.model
        return encoder

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names in the order of the logits."""
        return tuple(self.config.id2label[index] for index in range(self.classes))

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the trainable parameters by depth, see `families.trainable_layers`."""
        return families.trainable_layers(self, self.encoder)

    def freeze(self) -> None:
        """Freeze the encoder; the head and the pooler are still trained."""
        for group in families.parameters_by_depth(self.encoder):
            for parameter in group:
                parameter.requires_grad = False

    def gradient_checkpointing(self) -> None:
        """Recompute activations in the backward pass instead of storing them.

        Raises:
            ConfigError: the family does not support it.
        """
        families.checkpoint_activations(self.model)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and config to a folder that `open_checkpoint` reads.

        A head that is not linear adds two files to the folder of the encoder.
        """
        with self._scale_in_last_layer():
            self._save(folder)

    @property
    def has_bias(self) -> bool:
        """Whether the layer that computes the logits has a bias."""
        return self._last_layer().bias is not None

    def calibrate(self, scale: LogitScale) -> None:
        """Multiply the logits by a scale and add an offset, in the last layer.

        An offset other than 0 needs a bias.
        """
        layer = self._last_layer()
        scale_C, offset_C = (layer.weight.new_tensor(x) for x in (scale.scale, scale.offset))
        with torch.no_grad():
            layer.weight.mul_(scale_C[:, None])
            if self.has_bias:
                layer.bias.mul_(scale_C).add_(offset_C)

    @contextmanager
    def _scale_in_last_layer(self) -> Iterator[None]:
        """Move the scale of the targets into the last layer inside the block."""
        if self.target_scale is None:
            yield
            return
        scale, layer = self.target_scale, self._last_layer()
        before = [parameter.detach().clone() for parameter in layer.parameters()]
        try:
            with torch.no_grad():
                layer.weight.mul_(scale.std)
                layer.bias.mul_(scale.std).add_(scale.mean)
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(layer.parameters(), before, strict=True):
                    parameter.copy_(value)

    def _last_layer(self) -> nn.Linear:
        """Return the layer that computes the logits."""
        modules = self.model.modules() if self.head is None else self.head.modules()
        layers = [layer for layer in modules if isinstance(layer, nn.Linear)]
        return next(layer for layer in reversed(layers) if layer.out_features == self.classes)

    def _save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        if self.head is not None:
            weights = {name: tensor.contiguous() for name, tensor in self.head.state_dict().items()}
            save_file(weights, folder / HEAD_WEIGHTS)
            text = self.head_settings.model_dump_json(indent=2)
            (folder / HEAD_FILE).write_text(text + "\n", encoding="utf-8")


def build(settings: ModelSettings, tokenizer: Tokenizer, task: Task) -> Classifier:
    """Return a model in float32 with logits in the order of the labels of the task.

    Raises:
        ConfigError: the checkpoint cannot be opened, or does not match the tokenizer or the length.
    """
    silence_transformers()  # it warns of a new head, which is expected
    names = LabelNames.of(task)
    if settings.preset is not None:
        classifier = Classifier(_preset(settings, settings.preset, tokenizer, names), settings)
    else:
        name = str(settings.name)
        model, has_head = open_pretrained(settings, name, names)
        classifier = Classifier(model, settings)
        classifier.has_trained_head = has_head
        check_vocabulary(name, tokenizer, int(classifier.config.vocab_size))
        ngram_embeddings.restore(classifier.encoder, Path(name))
        check_length(
            settings,
            classifier.config,
            lambda ids_1T: classifier.eval().states(ids_1T, torch.ones_like(ids_1T)),
        )
    ngram_embeddings.add(classifier.encoder, settings.ngrams, tokenizer)
    if settings.freeze:
        classifier.freeze()
    return classifier


def open_checkpoint(folder: Path, attention: str | None = None) -> Classifier:
    """Load the checkpoint of a run in float32 and evaluation mode.

    `attention` is "eager" for tracing a graph, else the default of transformers for the family.

    Raises:
        RunFolderError: the files of the head were written by another version.
    """
    silence_transformers()
    settings = _head_settings(folder / HEAD_FILE)
    linear = settings.head is Head.LINEAR
    config = AutoConfig.from_pretrained(folder)
    kind = model_class(config) if linear else AutoModel
    model = kind.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=attention,
        local_files_only=True,
        **({} if linear else no_pooler(config)),
    )
    classifier = Classifier(model, settings)
    ngram_embeddings.restore(classifier.encoder, folder)
    if classifier.head is not None:
        classifier.head.load_state_dict(load_file(folder / HEAD_WEIGHTS))
    return classifier.eval()


def model_class(config: PreTrainedConfig) -> type[Any]:
    """Return the class of transformers for a config with a linear head."""
    return linear_model_class(per_token=is_per_token(*(config.architectures or ())))


def is_per_token(*architectures: str) -> bool:
    """Return whether the class of a model has logits for each token, by its name."""
    return any(name.endswith("ForTokenClassification") for name in architectures)


def padding_of(model: Classifier) -> Padding:
    """Return how the family pads a batch."""
    return families.padding(model.encoder)


def unused_parameters(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the trainable parameters without a gradient, found with a tiny batch.

    They are part of the checkpoint, but do not affect the output, such as XLNet's mask embedding.
    """
    was_training = model.training
    model.eval().zero_grad(set_to_none=True)
    model(**inputs).sum().backward()
    trainable = (
        (name, weight) for name, weight in model.named_parameters() if weight.requires_grad
    )
    names = [name for name, weight in trainable if weight.grad is None]
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    return names


def silence_transformers() -> None:
    """Disable warnings and progress bars of transformers."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _head_settings(path: Path) -> HeadSettings:
    if not path.is_file():
        return HeadSettings()
    try:
        return HeadSettings.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{path} is not a valid head: {first['loc']}: {first['msg']}"
        raise RunFolderError(message, "train again with this version") from error


def _preset(
    settings: ModelSettings, preset: Preset, tokenizer: Tokenizer, names: LabelNames
) -> PreTrainedModel:
    config = preset_config(settings, preset, tokenizer)
    names.write(config)
    if settings.head is Head.LINEAR:
        return names.model_class.from_config(config)
    return AutoModel.from_config(config, add_pooling_layer=False)
