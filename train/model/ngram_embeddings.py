"""Embeddings of token bigrams and trigrams, added to the token embeddings.

A single Chinese character carries little meaning, and a small encoder needs many texts to learn
words; n-gram embeddings provide them directly. The n-grams are hashed into a table of fixed size,
as in fastText (Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606, and Joulin et al. 2017,
https://arxiv.org/abs/1607.01759); ZEN (Diao et al. 2020, https://arxiv.org/abs/1911.00720) enhances
an encoder with n-grams of a lexicon. The hash is simple tabulation (Patrascu and Thorup 2012,
https://arxiv.org/abs/1011.5200): sums of random numbers looked up by token. Its integers are too
small to overflow in any runtime of an exported graph.

Shapes: B rows, T tokens, S sizes of n-grams, W width of the table, H width of the token
embeddings, K keys of a token, V tokens of the vocabulary, N n-grams, C candidates.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
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
PREFIX = "word_embeddings."  # name prefix of the weights in a checkpoint
SEARCH_ROWS, CANDIDATES = 512, 2**17  # texts that a search composes at a time; words that it tries


class NgramEmbedding(nn.Embedding):
    """Token embeddings plus the embeddings of the n-grams that end at each token.

    An n-gram never crosses the first token of a text, so packed rows give the same result. New
    tables are zero, so a new model computes the same as without n-grams.
    """

    keys: torch.Tensor

    def __init__(self, tokens: nn.Embedding, *, buckets: int, start_id: int) -> None:
        """Extend token embeddings; `start_id` is the first token of every text, and only there."""
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

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (the name in torch)
        """Return embeddings [B, T, H] of ids int64 [B, T]."""
        ids_BT = input
        hashes, insides, first_key = [], [], 0
        for size in SIZES:
            hash_BT, inside_BT = hashed(
                ids_BT, self.keys, size, first_key, self.buckets, self.start_id
            )
            hashes.append(hash_BT)
            insides.append(inside_BT.to(self.weight.dtype))
            first_key += size
        # One lookup for all sizes, because the gradient of each lookup is as large as the table.
        ngrams_BTSW = self.ngrams(torch.stack(hashes, dim=-1))
        ngrams_BTW = (ngrams_BTSW * torch.stack(insides, dim=-1).unsqueeze(-1)).sum(dim=-2)
        embeddings_BTH: torch.Tensor = super().forward(ids_BT) + self.project(ngrams_BTW)
        return embeddings_BTH


def hashed(
    ids_BT: torch.Tensor,
    keys_KV: torch.Tensor,
    size: int,
    first_key: int,
    buckets: int,
    start_id: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bucket of the n-gram ending at each token, and whether it is in the text."""
    hash_BT = keys_KV[first_key][ids_BT]
    inside_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    before_BT = ids_BT
    for back in range(1, size):
        inside_BT = inside_BT & (before_BT != start_id)
        before_BT = torch.cat((before_BT[:, :1], before_BT[:, :-1]), dim=1)
        hash_BT = hash_BT + keys_KV[first_key + back][before_BT]
        hash_BT = torch.where(hash_BT >= buckets, hash_BT - buckets, hash_BT)
    return hash_BT, inside_BT


def pair_kinds(
    ids_BT: torch.Tensor, mask_BT: torch.Tensor, tokens: int, separator_id: int
) -> torch.Tensor:
    """Return ids of the tokens of pairs by their text, int64 [B, T], below 4 times `tokens`.

    Args:
        ids_BT: token ids, below `tokens`.
        mask_BT: 1 for a token, 0 for padding.
        tokens: size of the vocabulary, which is added for a token of the second text, and twice
            for a token of both texts.
        separator_id: the token after the first text.
    """
    ends_BT = (ids_BT == separator_id).to(ids_BT.dtype)
    second_BT = (ends_BT.cumsum(dim=1) - ends_BT) > 0
    same_BTT = ids_BT[:, :, None] == ids_BT[:, None, :]
    other_BTT = second_BT[:, :, None] != second_BT[:, None, :]
    both_BT = (same_BTT & other_BTT & (mask_BT != 0)[:, None, :]).any(dim=2)
    kinds_BT: torch.Tensor = second_BT.to(ids_BT.dtype) + 2 * both_BT.to(ids_BT.dtype)
    return ids_BT + tokens * kinds_BT


@dataclass(frozen=True, kw_only=True, eq=False)
class NgramTable:
    """The hash function of a checkpoint's table, to find texts that read every bucket.

    Attributes:
        keys_KV: the keys of the tokens.
        buckets: size of the table.
        start_id: the first token of every text.
        sizes: the sizes of the n-grams.
        pairs: the last arguments of `pair_kinds`, if the tokens of pairs have kinds.
    """

    keys_KV: torch.Tensor
    buckets: int
    start_id: int
    sizes: tuple[int, ...] = SIZES
    pairs: tuple[int, int] | None = None

    @classmethod
    def read(cls, folder: Path, start_id: int) -> "NgramTable | None":
        """Read the keys of a checkpoint; None if it has no n-gram embeddings."""
        if not (folder / WEIGHTS).is_file():
            return None
        with safe_open(folder / WEIGHTS, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  (not a mapping)
                if name.endswith(f"{PREFIX}keys"):
                    table = weights.get_slice(name.removesuffix("keys") + "ngrams.weight")
                    buckets = table.get_shape()[0]
                    return cls(keys_KV=weights.get_tensor(name), buckets=buckets, start_id=start_id)
        return None

    def read_by(self, ids_T: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the buckets [N] that a text reads."""
        ids_BT, first_key = torch.from_numpy(ids_T.astype(np.int64))[None], 0
        if self.pairs is not None:
            ids_BT = pair_kinds(ids_BT, torch.ones_like(ids_BT), *self.pairs)
        found = []
        for size in self.sizes:
            hash_BT, inside_BT = hashed(
                ids_BT, self.keys_KV, size, first_key, self.buckets, self.start_id
            )
            found.append(hash_BT[inside_BT].numpy())
            first_key += size
        return np.concatenate(found)

    def search(
        self, missing: NDArray[np.bool_], words_V: NDArray[np.int32], length: int, seed: int
    ) -> NDArray[np.int32]:
        """Return words [B, T] whose n-grams read many of the `missing` buckets.

        Each word is the candidate whose bigram and trigram read most buckets that no earlier word
        reads. The candidates are all words if few buckets are missing, else a part of them.
        """
        rows = int(np.clip(missing.sum() // (len(self.sizes) * length), 1, SEARCH_ROWS))
        count = min(len(words_V), CANDIDATES // rows)
        random, keys_KV = np.random.default_rng(seed), self.keys_KV.numpy()
        mixed_V = random.permutation(words_V)
        fresh = np.tile(missing, 2).astype(np.int8)  # the sum of two hashes is below 2 * buckets
        texts_BT = np.empty((rows, length), np.int32)
        before_B = last_B = np.full(rows, self.start_id)
        for place in range(length):
            start_B = random.integers(len(mixed_V), size=rows)
            words_BC = mixed_V[(start_B[:, None] + np.arange(count)) % len(mixed_V)]
            buckets_BC = [keys_KV[0][words_BC] + keys_KV[1][last_B][:, None]]
            if place and len(self.sizes) > 1:  # a trigram does not start before the text
                other_B = (keys_KV[3][last_B] + keys_KV[4][before_B]) % self.buckets
                buckets_BC.append(keys_KV[2][words_BC] + other_B[:, None])
            best_B = sum(fresh[hash_BC] for hash_BC in buckets_BC).argmax(axis=1)
            chosen_B = np.arange(rows), best_B
            for hash_BC in buckets_BC:
                read_B = hash_BC[chosen_B] % self.buckets
                fresh[read_B] = fresh[read_B + self.buckets] = 0
            before_B, last_B = last_B, words_BC[chosen_B]
            texts_BT[:, place] = last_B
        return texts_BT


def add(encoder: PreTrainedModel, buckets: int, tokenizer: Tokenizer) -> None:
    """Add n-gram embeddings to an encoder, unless it has them already.

    Raises:
        ConfigError: it has another number of buckets, or does not support them.
    """
    existing = buckets_of(encoder)
    if existing and buckets not in {0, existing}:
        message = f"model.ngrams is {buckets}, but the checkpoint has {existing} buckets"
        raise ConfigError(message, "remove model.ngrams: the checkpoint has its own n-gram table")
    if buckets and not existing:
        attach(encoder, buckets=buckets, start_id=start_id(tokenizer))


def start_id(tokenizer: Tokenizer, missing: int | None = None) -> int:
    """Return the id of the first token of every text.

    Raises:
        ConfigError: the tokenizer does not start a text with a special token, and no id for a
            `missing` token is given.
    """
    encoding = tokenizer.encode("")
    if not encoding.ids or not encoding.special_tokens_mask[0]:
        if missing is not None:
            return missing
        message = "model.ngrams: the tokenizer does not start a text with a special token"
        raise ConfigError(message, "remove model.ngrams, or use a tokenizer that adds [CLS]")
    return int(encoding.ids[0])


def attach(encoder: PreTrainedModel, *, buckets: int, start_id: int) -> None:
    """Replace the token embeddings by n-gram embeddings, and store their sizes in the config.

    Raises:
        ConfigError: the family does not start a text with a special token, or has other embeddings.
    """
    tokens = encoder.get_input_embeddings()
    if reads_last(encoder.config) or type(tokens) is not nn.Embedding:
        message = f"model.ngrams: {encoder.config.model_type} does not support n-gram embeddings"
        raise ConfigError(message, "remove model.ngrams, or use a preset")
    encoder.set_input_embeddings(NgramEmbedding(tokens, buckets=buckets, start_id=start_id))
    encoder.config.ngram_buckets = buckets
    encoder.config.ngram_start_id = start_id


def restore(encoder: PreTrainedModel, folder: Path) -> None:
    """Load the n-gram embeddings of a checkpoint into an encoder, if there are any."""
    buckets = buckets_of(encoder)
    if not buckets:
        return
    attach(encoder, buckets=buckets, start_id=int(encoder.config.ngram_start_id))
    embedding = encoder.get_input_embeddings()
    names = embedding.state_dict().keys() - {"weight"}
    with safe_open(folder / WEIGHTS, framework="pt") as weights:
        tensors = {
            name: weights.get_tensor(key)
            for key in weights.keys()  # noqa: SIM118  (not a mapping)
            if (name := key.rpartition(PREFIX)[2]) in names and PREFIX in key
        }
    embedding.load_state_dict({"weight": embedding.weight, **tensors})


def buckets_of(encoder: PreTrainedModel) -> int:
    """Return the number of buckets in the config of an encoder, 0 without n-grams."""
    return int(getattr(encoder.config, "ngram_buckets", 0))
