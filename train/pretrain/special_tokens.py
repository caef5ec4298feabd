"""The special tokens that a tokenizer sets around one text and around two."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

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
