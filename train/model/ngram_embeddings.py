"""Embeddings of token pairs and triples, added to those of the tokens.

A Chinese character says little by itself, and a small encoder learns words from few texts only
slowly; so each token also gets what its n-grams mean. These are hashed into a table of fixed size,
as in fastText (Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606, and Joulin et al. 2017,
https://arxiv.org/abs/1607.01759); ZEN (Diao et al. 2020, https://arxiv.org/abs/1911.00720) enhances
an encoder by n-grams of a lexicon. The hash is simple tabulation (Patrascu and Thorup 2012,
https://arxiv.org/abs/1011.5200): sums of random numbers looked up by token, which an exported graph
computes with integers too small to overflow anywhere.

Shapes: B rows, T tokens, S sizes of n-grams, W width of the table, H width of the token
embeddings.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from pipework.errors import ConfigError
from pipework.train.model.families import reads_last

SIZES = (2, 3)
WIDTH = 64
SEED = 0
WEIGHTS = "model.safetensors"
INSIDE = "word_embeddings."  # where the weights lie in a checkpoint


class NgramEmbedding(nn.Embedding):
    """Token embeddings with those of the n-grams that end at each token.

    No n-gram reaches over the first token of a text, whether its row holds one text or several
    side by side. New tables are zero: a model begins as it would without them.
    """

    keys: torch.Tensor

    def __init__(self, tokens: nn.Embedding, *, buckets: int, start_id: int) -> None:
        """Take over token embeddings; `start_id` begins every text and stands nowhere else."""
        super().__init__(tokens.num_embeddings, tokens.embedding_dim, tokens.padding_idx)
        self.weight = tokens.weight
        self.buckets = buckets
        self.start_id = start_id
        self.ngrams = nn.Embedding(buckets, WIDTH)
        self.project = nn.Linear(WIDTH, tokens.embedding_dim, bias=False)
        nn.init.zeros_(self.ngrams.weight)
        nn.init.normal_(self.project.weight, std=WIDTH**-0.5)
        random = torch.Generator().manual_seed(SEED)
        keys = torch.randint(buckets, (sum(SIZES), tokens.num_embeddings), generator=random)
        self.register_buffer("keys", keys)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (the library's name)
        """Return embeddings [B, T, H] of ids int64 [B, T]."""
        ids_BT = input
        hashes, insides, first_key = [], [], 0
        for size in SIZES:
            hash_BT, inside_BT = self._hashed(ids_BT, size, first_key)
            hashes.append(hash_BT)
            insides.append(inside_BT.to(self.weight.dtype))
            first_key += size
        # One look into the table for all sizes: its gradient is as large as the table.
        found_BTSW = self.ngrams(torch.stack(hashes, dim=-1))
        found_BTW = (found_BTSW * torch.stack(insides, dim=-1).unsqueeze(-1)).sum(dim=-2)
        together_BTH: torch.Tensor = super().forward(ids_BT) + self.project(found_BTW)
        return together_BTH

    def _hashed(
        self, ids_BT: torch.Tensor, size: int, first_key: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bucket of the n-gram that ends at a token, and whether it is in its text."""
        hash_BT = self.keys[first_key][ids_BT]
        inside_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        before_BT = ids_BT
        for back in range(1, size):
            inside_BT = inside_BT & (before_BT != self.start_id)
            before_BT = torch.cat((before_BT[:, :1], before_BT[:, :-1]), dim=1)
            hash_BT = hash_BT + self.keys[first_key + back][before_BT]
            hash_BT = torch.where(hash_BT >= self.buckets, hash_BT - self.buckets, hash_BT)
        return hash_BT, inside_BT


def add(encoder: PreTrainedModel, buckets: int, tokenizer: Tokenizer) -> None:
    """Give an encoder the n-gram embeddings that are asked for, unless it has them.

    Raises:
        ConfigError: it has others, or cannot have any.
    """
    found = buckets_of(encoder)
    if found and buckets not in {0, found}:
        message = f"model.ngrams is {buckets}, and the checkpoint has {found} buckets"
        raise ConfigError(message, "leave it out: they are part of the checkpoint")
    if buckets and not found:
        attach(encoder, buckets=buckets, start_id=start_id(tokenizer))


def start_id(tokenizer: Tokenizer) -> int:
    """Return the id that begins every text.

    Raises:
        ConfigError: the tokenizer puts no special token there.
    """
    found = tokenizer.encode("")
    if not found.ids or not found.special_tokens_mask[0]:
        message = "model.ngrams: the tokenizer does not begin a text with a special token"
        raise ConfigError(message, "leave out model.ngrams, or take a tokenizer as BERT's")
    return int(found.ids[0])


def attach(encoder: PreTrainedModel, *, buckets: int, start_id: int) -> None:
    """Give an encoder new n-gram embeddings; its config keeps their sizes.

    Raises:
        ConfigError: its family begins no text with a special token, or embeds otherwise.
    """
    tokens = encoder.get_input_embeddings()
    if reads_last(encoder.config) or type(tokens) is not nn.Embedding:
        message = f"model.ngrams: {encoder.config.model_type} cannot have n-gram embeddings"
        raise ConfigError(message, "leave it out, or take a preset")
    encoder.set_input_embeddings(NgramEmbedding(tokens, buckets=buckets, start_id=start_id))
    encoder.config.ngram_buckets = buckets
    encoder.config.ngram_start_id = start_id


def restore(encoder: PreTrainedModel, folder: Path) -> None:
    """Give an encoder the n-gram embeddings that its checkpoint holds, if there are any."""
    buckets = buckets_of(encoder)
    if not buckets:
        return
    attach(encoder, buckets=buckets, start_id=int(encoder.config.ngram_start_id))
    embedding = encoder.get_input_embeddings()
    wanted = embedding.state_dict().keys() - {"weight"}
    with safe_open(folder / WEIGHTS, framework="pt") as kept:
        found = {
            name: kept.get_tensor(key)
            for key in kept.keys()  # noqa: SIM118  (no mapping)
            if (name := key.rpartition(INSIDE)[2]) in wanted and INSIDE in key
        }
    embedding.load_state_dict({"weight": embedding.weight, **found})


def buckets_of(encoder: PreTrainedModel) -> int:
    """Return how many buckets an encoder's config names, 0 for one without n-grams."""
    return int(getattr(encoder.config, "ngram_buckets", 0))
