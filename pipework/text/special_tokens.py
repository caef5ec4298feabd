"""Two texts become one input: cut, then joined by the special tokens of a tokenizer.

The library's own truncation keeps all that it cuts off, each part of one text joined with each of
the other: for two texts of 50,000 characters that took 23 s and 6.9 GB.

Shapes: T tokens of one input, special tokens included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.errors import ConfigError
from pipework.text.word_cache import PROBE, probing


@dataclass(frozen=True, kw_only=True, slots=True)
class Joint:
    """What a tokenizer puts before, between and after two texts.

    Attributes:
        ids: of the tokens before, between and after, int32.
        type_ids: of the same tokens, int8.
        kinds: the type of the tokens of the first text, and of the second.
    """

    ids: tuple[NDArray[np.int32], ...]
    type_ids: tuple[NDArray[np.int8], ...]
    kinds: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Joint":
        """See what a tokenizer that does not truncate makes of two texts of a token each.

        Raises:
            ConfigError: it does not join texts in their order.
        """
        found = probing(tokenizer).encode(PROBE, PROBE)
        texts = found.sequence_ids
        if [text for text in texts if text is not None] != [0, 1]:
            message = "the tokenizer does not join two texts, the first before the second"
            hint = "take a tokenizer whose post-processor has a template of pairs"
            raise ConfigError(message, hint)
        first, second = texts.index(0), texts.index(1)
        ends = (first, first + 1, second, second + 1)
        ids, types = np.array(found.ids, np.int32), np.array(found.type_ids, np.int8)
        return cls(
            ids=tuple(np.split(ids, ends)[::2]),
            type_ids=tuple(np.split(types, ends)[::2]),
            kinds=(int(types[first]), int(types[second])),
        )

    def join(
        self, first: NDArray[np.int32], second: NDArray[np.int32], max_length: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """Return ids int32 [T] and type ids int8 [T] of the tokens of two texts.

        T is at most `max_length`, or the number of special tokens where that is larger.
        """
        room = max(0, max_length - sum(map(len, self.ids)))
        counts = shares(len(first), len(second), room)
        kept = [ids[:n] for ids, n in zip((first, second), counts, strict=True)]
        kinds = [np.full(n, kind, np.int8) for kind, n in zip(self.kinds, counts, strict=True)]
        ids = (self.ids[0], kept[0], self.ids[1], kept[1], self.ids[2])
        types = (self.type_ids[0], kinds[0], self.type_ids[1], kinds[1], self.type_ids[2])
        return np.concatenate(ids), np.concatenate(types)


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept where there is room for so many.

    The longer one loses tokens until it is as long as the other, then both, as in BERT's reference
    code. Of an odd room the second gets the odd token if it was not the shorter one: as the
    tokenizers library does it.
    """
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room // 2 + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)


Tokens = NDArray[np.int64]
Array = TypeVar("Array", bound=NDArray[Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP], in the words of any family.

    Attributes:
        one: the ids before and behind one text.
        two: the ids before, between and behind two texts.
        types: for the five parts of two texts, the type id of each token of the three of `two`, and
            of the texts between them.
    """

    one: tuple[tuple[int, ...], tuple[int, ...]]
    two: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    types: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Read it from how the tokenizer frames a letter, and two."""
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.no_truncation()
        plain.no_padding()
        single, pair = plain.encode("a"), plain.encode("a", "a")
        (start, end), *_ = _texts(single.special_tokens_mask)
        (first, middle), (second, last) = _texts(pair.special_tokens_mask)
        ids, types = pair.ids, pair.type_ids
        return cls(
            one=(tuple(single.ids[:start]), tuple(single.ids[end:])),
            two=(tuple(ids[:first]), tuple(ids[middle:second]), tuple(ids[last:])),
            types=(
                tuple(types[:first]),
                types[first],
                tuple(types[middle:second]),
                types[second],
                tuple(types[last:]),
            ),
        )

    @property
    def of_one(self) -> int:
        """How many special tokens stand around one text."""
        return sum(map(len, self.one))

    @property
    def of_pair(self) -> int:
        """How many stand around two."""
        return sum(map(len, self.two))

    def ids(self, texts: Sequence[Tokens]) -> Tokens:
        """Return the ids of one or two texts with the special tokens, int64."""
        return _between([np.array(part, np.int64) for part in self._parts(texts)], texts)

    def units(self, units: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return flags of the tokens of one or two texts, True for the special ones."""
        return _between([np.ones(len(part), bool) for part in self._parts(units)], units)

    def type_ids(self, texts: Sequence[Tokens]) -> Tokens:
        """Return the type ids of one or two texts with the special tokens, int64."""
        if len(texts) == 1:
            return np.zeros(self.of_one + len(texts[0]), np.int64)
        before, first, between, second, behind = self.types
        inner = [np.full(len(text), one) for text, one in zip(texts, (first, second), strict=True)]
        return _between([np.array(part, np.int64) for part in (before, between, behind)], inner)

    def _parts(self, texts: Sequence[object]) -> Sequence[tuple[int, ...]]:
        return self.one if len(texts) == 1 else self.two


def _between(special: Sequence[Array], texts: Sequence[Array]) -> Array:
    """Set special tokens before, between and behind texts."""
    parts = [part for pair in zip(special, texts, strict=False) for part in pair]
    return cast("Array", np.concatenate([*parts, special[-1]]))


def _texts(special: list[int]) -> list[tuple[int, int]]:
    """Return where the runs of tokens that are not special start and end."""
    edges = np.flatnonzero(np.diff([1, *special, 1]))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
