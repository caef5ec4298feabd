"""The pretraining model: masked language modelling and sentence-order prediction.

Shapes: R rows, T tokens of a row, M masked tokens, N pairs, H width, V ids of the vocabulary.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForMaskedLM, PreTrainedModel

from pipework.text.padding import Padding
from pipework.train.config.model import ModelSettings
from pipework.train.model import families, ngram_embeddings
from pipework.train.model.classifier import silence_transformers
from pipework.train.model.encoder_configs import preset_config, read_config
from pipework.train.model.families import without_encoder
from pipework.train.model.packed_encoder import PackedEncoder, check_packable
from pipework.train.model.pretrained import (
    check_length,
    check_loaded,
    check_vocabulary,
    load,
    opening,
)

ORDER = "order.safetensors"


class PretrainModel(nn.Module):
    """A masked language model over packed rows; logits are computed only for masked tokens.

    `order` adds sentence-order prediction: the pooler of the encoder and a linear layer predict
    whether the segments of a pair were swapped (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

    Attributes:
        model: the masked language model of transformers.
        order: the linear layer of sentence-order prediction, 2 logits, or None.
    """

    def __init__(self, model: PreTrainedModel, order: nn.Linear | None) -> None:
        """Wrap a model whose family passes `check_packable`."""
        super().__init__()
        self.model = model
        self.config = model.config
        self.order = order
        self.scales = (1.0, 1.0)
        self._read = PackedEncoder(model.base_model)

    def forward(
        self,
        places: torch.Tensor,
        targets: torch.Tensor,
        swapped: torch.Tensor,
        **packed: torch.Tensor,
    ) -> torch.Tensor:
        """Return the losses of both objectives, float32 [2], summed and scaled by `scales`.

        Args:
            places: int64 [M], positions of the masked tokens in the flattened rows.
            targets: int64 [M], their true ids.
            swapped: int64 [N], 1 for a pair whose segments were swapped.
            packed: the other inputs of `predict`.
        """
        logits_MV, logits_N2 = self.predict(places=places, **packed)
        masked = functional.cross_entropy(logits_MV.float(), targets, reduction="sum")
        order = masked.new_zeros(())
        if logits_N2 is not None:
            order = functional.cross_entropy(logits_N2.float(), swapped, reduction="sum")
        return torch.stack([masked * self.scales[0], order * self.scales[1]])

    def predict(
        self, places: torch.Tensor, pairs: torch.Tensor, **rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return logits [M, V] of masked tokens, and [N, 2] of the order of pairs.

        Args:
            places: int64 [M], as in `forward`.
            pairs: int64 [N], positions of the first token of each pair in the flattened rows.
            rows: the inputs of `PackedEncoder`, int64 [R, T].
        """
        states_SH = self.states(**rows).flatten(0, 1)
        masked_1MH = states_SH[places].unsqueeze(0)
        mask_1M = torch.ones(masked_1MH.shape[:2], dtype=torch.int64, device=masked_1MH.device)
        shell = without_encoder(self.model)
        logits_MV = shell(inputs_embeds=masked_1MH, attention_mask=mask_1M).logits[0]
        if self.order is None:
            return logits_MV, None
        firsts_N1H = states_SH[pairs].unsqueeze(1)
        pooled_NH = families.pooled(self.encoder, firsts_N1H)
        return logits_MV, self.order(firsts_N1H[:, 0] if pooled_NH is None else pooled_NH)

    def states(self, **rows: torch.Tensor) -> torch.Tensor:
        """Return the encoder's last hidden states [R, T, H]."""
        return self._read(**rows)

    @property
    def encoder(self) -> PreTrainedModel:
        """The encoder without the heads."""
        encoder: PreTrainedModel = self.model.base_model
        return encoder

    @property
    def padding(self) -> Padding:
        """How the family pads rows, and whether it has type ids."""
        return families.padding(self.encoder)

    def layers(self) -> list[list[nn.Parameter]]:
        """Return the trainable parameters by depth: embeddings, each layer, heads."""
        return families.trainable_layers(self, self.encoder)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and config in the format of AutoModelForMaskedLM.

        The weights include the pooler; the order layer is in a separate file.
        """
        self.model.save_pretrained(folder)
        if self.order is not None:
            save_file(self.order.state_dict(), folder / ORDER)


def build_pretrain_model(
    settings: ModelSettings, tokenizer: Tokenizer, *, order: bool
) -> PretrainModel:
    """Return a model in float32: a pretrained checkpoint, or a preset from scratch.

    A checkpoint without an MLM head gets a new head, tied to its embeddings.

    Raises:
        ConfigError: the checkpoint cannot be opened or does not match the tokenizer; or its family
            has no masked language model, or does not support packed rows.
    """
    silence_transformers()
    if settings.preset is not None:
        config = preset_config(settings, settings.preset, tokenizer)
        donor = AutoModel.from_config(config) if order else None
        pretrain_model = _with_order(AutoModelForMaskedLM.from_config(config), donor)
        ngram_embeddings.add(pretrain_model.encoder, settings.ngrams, tokenizer)
        return pretrain_model
    name = str(settings.name)
    with opening(name):
        config = read_config(name)
        check_packable(config.model_type, "pretrain another model")
        model, loading = load(AutoModelForMaskedLM, name, config)
        donor = load(AutoModel, name, config)[0] if order else None
    check_loaded(name, model, loading, linear=True)
    check_vocabulary(name, tokenizer, int(config.vocab_size))
    ngram_embeddings.restore(model.base_model, Path(name))
    pretrain_model = _with_order(model, donor)
    check_length(
        settings,
        config,
        lambda ids_1T: pretrain_model.states(
            input_ids=ids_1T,
            position_ids=torch.arange(ids_1T.shape[1]).unsqueeze(0),
            segment_ids=torch.zeros_like(ids_1T),
        ),
    )
    _load_order(pretrain_model, Path(name))
    ngram_embeddings.add(pretrain_model.encoder, settings.ngrams, tokenizer)
    return pretrain_model


def open_pretrain_model(folder: Path) -> PretrainModel:
    """Load a checkpoint that `PretrainModel.save` wrote, in float32 and in evaluation mode."""
    silence_transformers()
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    ngram_embeddings.restore(model.base_model, folder)
    donor = None
    if (folder / ORDER).is_file():
        donor = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    pretrain_model = _with_order(model, donor)
    _load_order(pretrain_model, folder)
    return pretrain_model.eval()


def _with_order(model: PreTrainedModel, donor: PreTrainedModel | None) -> PretrainModel:
    """Add the pooler of `donor` to the encoder, because masked language models have none."""
    if donor is None:
        return PretrainModel(model, None)
    for part in ("pooler", "pooler_activation"):
        if getattr(donor, part, None) is not None:
            setattr(model.base_model, part, getattr(donor, part))
    order = nn.Linear(int(model.config.hidden_size), 2)
    nn.init.normal_(order.weight, std=float(getattr(model.config, "initializer_range", 0.02)))
    nn.init.zeros_(order.bias)
    return PretrainModel(model, order)


def _load_order(pretrain_model: PretrainModel, folder: Path) -> None:
    if pretrain_model.order is not None and (folder / ORDER).is_file():
        pretrain_model.order.load_state_dict(load_file(folder / ORDER))
