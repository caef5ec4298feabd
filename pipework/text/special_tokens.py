"""Insert a tokenizer's special tokens around one or two tokenized texts.

Shapes: T tokens of one input, special tokens included.
"""

# Pairs are truncated and joined here because the library's truncation also stores the overflow:
# every combination of the parts of both texts. Two texts of 50,000 characters take 23 s and 6.9 GB.

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.errors import ConfigError
from pipework.text.word_cache import PROBE, with_probe_token

Tokens = NDArray[np.int64]
Array = TypeVar("Array", bound=NDArray[Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTemplate:
    """The special tokens before, between and after the texts of a pair.

    Attributes:
        ids: the special tokens before, between and after the texts, int32.
        type_ids: the type ids of these tokens, int8.
        kinds: the type id of the tokens of the first and of the second text.
    """

    ids: tuple[NDArray[np.int32], ...]
    type_ids: tuple[NDArray[np.int8], ...]
    kinds: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "PairTemplate":
        """Derive the template from a tokenizer without truncation by encoding a probe pair.

        Raises:
            ConfigError: the tokenizer has no template for pairs, or reverses the order.
        """
        probe = with_probe_token(tokenizer).encode(PROBE, PROBE)
        texts = probe.sequence_ids
        if [text for text in texts if text is not None] != [0, 1]:
            message = "the tokenizer does not join two texts, the first before the second"
            hint = "use a tokenizer whose post-processor has a template for pairs"
            raise ConfigError(message, hint)
        first, second = texts.index(0), texts.index(1)
        ends = (first, first + 1, second, second + 1)
        ids, types = np.array(probe.ids, np.int32), np.array(probe.type_ids, np.int8)
        return cls(
            ids=tuple(np.split(ids, ends)[::2]),
            type_ids=tuple(np.split(types, ends)[::2]),
            kinds=(int(types[first]), int(types[second])),
        )

    def room(self, max_length: int) -> int:
        """Return the number of tokens of both texts that fit into `max_length` tokens."""
        return max(0, max_length - sum(map(len, self.ids)))

    def join(
        self, first: NDArray[np.int32], second: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """Return ids int32 [T] and type ids int8 [T] of a pair, given the tokens of its texts."""
        ids = (self.ids[0], first, self.ids[1], second, self.ids[2])
        return np.concatenate(ids), self.types(len(first), len(second))

    def types(self, first: int, second: int) -> NDArray[np.int8]:
        """Return type ids int8 [T] of a pair, given the numbers of tokens of its texts."""
        kinds = [np.full(n, k, np.int8) for k, n in zip(self.kinds, (first, second), strict=True)]
        types = (self.type_ids[0], kinds[0], self.type_ids[1], kinds[1], self.type_ids[2])
        return np.concatenate(types)


def matching_special_tokens(tokenizer: Tokenizer, but: Collection[int]) -> Tokenizer:
    """Return a tokenizer that finds its special tokens inside texts, but for some ids."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["special"] and token["id"] in but
    return Tokenizer.from_str(json.dumps(state))


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two texts after truncation to `room` tokens in total.

    The longer text loses tokens until both have the same length, then both lose tokens, as in
    BERT's reference code. If `room` is odd, the second text gets the extra token unless it was the
    shorter text, as in the tokenizers library.
    """
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room // 2 + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SpecialTokens:
    """The special tokens around a text and around a pair, such as [CLS] text [SEP] text [SEP].

    Attributes:
        single: ids before and after a single text.
        pair: the template of a pair.
    """

    single: tuple[Tokens, Tokens]
    pair: PairTemplate

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Derive the special tokens by encoding a probe text and a probe pair.

        Raises:
            ConfigError: see `PairTemplate.of`.
        """
        plain = with_probe_token(tokenizer)
        plain.no_truncation()
        plain.no_padding()
        probe = plain.encode(PROBE)
        index, ids = probe.tokens.index(PROBE), np.array(probe.ids, np.int64)
        return cls(single=(ids[:index], ids[index + 1 :]), pair=PairTemplate.of(plain))

    @property
    def single_count(self) -> int:
        """Number of special tokens of a single text."""
        return sum(map(len, self.single))

    @property
    def pair_count(self) -> int:
        """Number of special tokens of a pair."""
        return sum(map(len, self.pair.ids))

    def ids(self, texts: Sequence[Tokens]) -> Tokens:
        """Return the ids of one or two texts with special tokens, int64."""
        return _interleave([part.astype(np.int64) for part in self._parts(texts)], texts)

    def units(self, units: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return the flags of one or two texts with True for each special token."""
        return _interleave([np.ones(len(part), bool) for part in self._parts(units)], units)

    def type_ids(self, texts: Sequence[Tokens]) -> Tokens:
        """Return the type ids of one or two texts with special tokens, int64."""
        if len(texts) == 1:
            return np.zeros(self.single_count + len(texts[0]), np.int64)
        return self.pair.types(*map(len, texts)).astype(np.int64)

    def _parts(self, texts: Sequence[object]) -> Sequence[NDArray[np.integer]]:
        return self.single if len(texts) == 1 else self.pair.ids


def _interleave(special: Sequence[Array], texts: Sequence[Array]) -> Array:
    """Concatenate special tokens and texts alternately, starting and ending with special ones."""
    parts = [part for pair in zip(special, texts, strict=False) for part in pair]
    return cast("Array", np.concatenate([*parts, special[-1]]))
