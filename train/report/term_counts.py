"""Counts the words and word bigrams of texts.

The counts and the columns are those of scikit-learn's CountVectorizer, which looks up each bigram
as a string. Here words are numbered in alphabetical order, and a term is a number of
which the high part is its first word and the low part its second word, or 0.

Shapes: N texts, T words of a text, F terms.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = Any  # scipy's sparse [N, F]: it has no types
Words = NDArray[np.int32]  # the numbers of the words of a text, [T]; -1 for an unknown word
TEXTS = 1000  # texts whose terms are counted at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """The terms of some texts, text after text, each term once.

    Attributes:
        texts: the text of each term, by its index in the part.
        terms: the terms, sorted in each text.
        counts: how often the text has the term.
        size: number of texts.
    """

    texts: NDArray[np.int32]
    terms: NDArray[np.int64]
    counts: NDArray[np.float32]
    size: int


class TermCounts:
    """Learns the terms of texts, and counts them in these and in other texts."""

    def __init__(self, pattern: str, min_texts: int) -> None:
        """Count terms of words that match a pattern, if they are in enough texts."""
        self._find = re.compile(pattern).findall
        self._min_texts = min_texts

    def fit(self, texts: Sequence[str]) -> Matrix:
        """Learn the terms, and return their counts in these texts, float32 [N, F]."""
        first_seen: defaultdict[str, int] = defaultdict()
        first_seen.default_factory = first_seen.__len__
        found = [self._words(text, first_seen.__getitem__) for text in texts]
        self._numbers = {word: number for number, word in enumerate(sorted(first_seen))}
        sorted_numbers = np.array([self._numbers[word] for word in first_seen], np.int32)
        parts = [*self._parts(sorted_numbers[words_T] for words_T in found)]
        every = np.concatenate([part.terms for part in parts])
        terms_F, texts_F = np.unique(every, return_counts=True)
        self._terms_F = terms_F[texts_F >= self._min_texts]
        return self._matrix(parts)

    def of(self, texts: Sequence[str]) -> Matrix:
        """Return the counts of the learned terms in texts, float32 [N, F]."""
        number = self._numbers.get
        found = (self._words(text, lambda word: number(word, -1)) for text in texts)
        return self._matrix(self._parts(found))

    def _words(self, text: str, number: Callable[[str], int]) -> Words:
        return np.fromiter(map(number, self._find(text.lower())), np.int32)

    def _parts(self, texts: Iterable[Words]) -> Iterator[_Part]:
        rest, base = iter(texts), len(self._numbers) + 1
        while some := [*islice(rest, TEXTS)]:
            words_T = np.concatenate(some).astype(np.int64)
            texts_T = np.repeat(np.arange(len(some)), [*map(len, some)])
            # A text and its term as one number, which is at most 1,000 times the square of `base`.
            start_T = (texts_T * base + words_T) * base
            known_T = words_T >= 0
            pair_T = known_T[:-1] & known_T[1:] & (texts_T[:-1] == texts_T[1:])
            pairs = start_T[:-1][pair_T] + words_T[1:][pair_T] + 1
            numbers, counts = np.unique(
                np.concatenate((start_T[known_T], pairs)), return_counts=True
            )
            yield _Part(
                texts=(numbers // base**2).astype(np.int32),
                terms=numbers % base**2,
                counts=counts.astype(np.float32),
                size=len(some),
            )

    def _matrix(self, parts: Iterable[_Part]) -> Matrix:
        from scipy import sparse  # noqa: PLC0415  (needs an extra)

        blocks = []
        with_end = np.append(self._terms_F, -1)  # which is no term
        for part in parts:
            columns = np.searchsorted(self._terms_F, part.terms)
            learned = with_end[columns] == part.terms
            starts = np.searchsorted(part.texts[learned], np.arange(part.size + 1))
            block = part.counts[learned], columns[learned].astype(np.int32), starts
            blocks.append(sparse.csr_matrix(block, shape=(part.size, len(self._terms_F))))
        return sparse.vstack(blocks, format="csr")
