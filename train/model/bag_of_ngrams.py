"""A linear model on the tokens and token bigrams of a text, as a model of transformers.

A text is the vector of its TF-IDF weights (Spärck Jones 1972), divided by its length, as in
"Baselines and Bigrams" (Wang and Manning 2012). Bigrams are hashed into a table of fixed size
(Weinberger et al. 2009, https://arxiv.org/abs/0902.2206). In a pair of texts, a token counts
differently in the first and in the second text, and if it is in both; the share of the weights of
such tokens is one more feature. So the logits are sums of rows of a table, and every runtime can
compute them.

Shapes: B rows, T tokens, C classes, V tokens of the vocabulary, U kinds of tokens (V, or 4 V for
pairs), F = U + buckets.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import CONFIG_NAME

from pipework.train.config.model import LINEAR_FAMILY
from pipework.train.model.ngram_embeddings import SEED, WEIGHTS, NgramTable, hashed, pair_kinds

BIGRAM = 2
NO_TOKEN = -1
KINDS = 4  # of a token of a pair: in the first or second text, and whether it is in both
SMALLEST_NORM = 1e-6


class BagOfNgramsConfig(PreTrainedConfig):  # type: ignore[misc]
    """The sizes of a `BagOfNgrams`.

    `start_id` is the first token of every text, `separator_id` the token after the first text of a
    pair; NO_TOKEN if there is none. Without a separator, the texts of a pair are one text.
    """

    model_type = LINEAR_FAMILY

    def __init__(
        self,
        vocab_size: int = 1,
        buckets: int = 1,
        start_id: int = NO_TOKEN,
        separator_id: int = NO_TOKEN,
        pad_token_id: int = 0,
        **others: Any,  # noqa: ANN401  (the keys of every config)
    ) -> None:
        """Set the sizes."""
        super().__init__(**others)
        self.vocab_size = vocab_size
        self.buckets = buckets
        self.start_id = start_id
        self.separator_id = separator_id
        self.pad_token_id = pad_token_id

    @property
    def pairs(self) -> bool:
        """Whether an input is a pair of texts."""
        return self.separator_id != NO_TOKEN

    @property
    def kinds(self) -> int:
        """U."""
        return self.vocab_size * (KINDS if self.pairs else 1)

    @property
    def features(self) -> int:
        """F."""
        return self.kinds + self.buckets


class BagOfNgrams(PreTrainedModel):  # type: ignore[misc]
    """Sums the rows of a table that a text reads, divides them by a norm, and adds a bias.

    The columns of the table are the weights of the classes, multiplied by the IDF, and the square
    of the IDF, whose sum over a text is the square of its norm.
    """

    config_class = BagOfNgramsConfig
    keys: torch.Tensor

    def __init__(self, config: BagOfNgramsConfig) -> None:
        """Create a model whose logits are 0."""
        super().__init__(config)
        self.table = nn.Embedding(config.features, config.num_labels + 1)
        self.classifier = nn.Linear(config.num_labels + config.pairs, config.num_labels)
        random = torch.Generator().manual_seed(SEED)
        shape = (BIGRAM, config.kinds)
        keys = torch.randint(config.buckets, shape, generator=random, device="cpu")
        self.register_buffer("keys", keys)
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: object
    ) -> SequenceClassifierOutput:
        """Return logits [B, C] of ids and mask int64 [B, T]; padding is on the right."""
        rows = self.rows(input_ids, attention_mask)
        mask_BT1 = attention_mask.to(self.table.weight.dtype).unsqueeze(2)
        values = self.table(rows) * torch.cat((mask_BT1, mask_BT1), dim=1)
        total = values.sum(dim=1)
        norm_B1 = total[:, -1:].clamp(min=SMALLEST_NORM).sqrt()
        inputs = total[:, :-1] / norm_B1
        if self.config.pairs:
            length = input_ids.shape[1]
            squares_BT = values[:, :length, -1]
            shared_BT = squares_BT * (rows[:, :length] >= self.config.kinds // 2).to(values.dtype)
            share_B1 = shared_BT.sum(dim=1, keepdim=True) / squares_BT.sum(dim=1, keepdim=True)
            inputs = torch.cat((inputs, share_B1), dim=1)
        return SequenceClassifierOutput(logits=self.classifier(inputs))

    def rows(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Return the rows of the table that each token and each bigram reads, int64 [B, 2 T]."""
        config = self.config
        kinds_BT = ids_BT
        if config.pairs:
            kinds_BT = pair_kinds(ids_BT, mask_BT, config.vocab_size, config.separator_id)
        hash_BT, inside_BT = hashed(kinds_BT, self.keys, BIGRAM, 0, config.buckets, config.start_id)
        # A start token has no bigram and counts twice. Without it, the first token precedes itself.
        second_BT = torch.where(inside_BT, hash_BT + config.kinds, kinds_BT)
        return torch.cat((kinds_BT, second_BT), dim=1)


def ngram_table(folder: Path) -> NgramTable | None:
    """Return the table of a checkpoint; None if it is another model."""
    fields = json.loads((folder / CONFIG_NAME).read_bytes())
    if fields.get("model_type") != LINEAR_FAMILY:
        return None
    config = BagOfNgramsConfig.from_dict(fields)
    with safe_open(folder / WEIGHTS, framework="pt") as weights:
        keys_KV = weights.get_tensor("keys")
    return NgramTable(
        keys_KV=keys_KV,
        buckets=config.buckets,
        start_id=config.start_id,
        sizes=(BIGRAM,),
        pairs=(config.vocab_size, config.separator_id) if config.pairs else None,
    )


def register() -> None:
    """Make the model known to transformers, which then opens its checkpoints."""
    AutoConfig.register(LINEAR_FAMILY, BagOfNgramsConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(BagOfNgramsConfig, BagOfNgrams, exist_ok=True)
