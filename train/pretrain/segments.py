"""Splits texts and documents into the inputs of pretraining.

Shapes: T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.text.encoding import TextEncoder, TextTokens

SHORT_PAIR_RATE = 0.1  # share of pairs with a reduced token budget
# Unicode blocks: Thai and Lao, Myanmar, Khmer, kana, and the ideographs that BERT splits.
BLOCKS = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F)),
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PretrainInput:
    """The tokens of one input.

    Attributes:
        ids: int32 [T], T >= 1.
        words: int32 [T], the number of the word that each token belongs to.
        middle: number of tokens of the first of two segments, or 0 for a single segment.
        size: approximate bytes in the data file.
    """

    ids: NDArray[np.int32]
    words: NDArray[np.int32]
    middle: int
    size: int


def cut_texts(texts: Sequence[str], encoder: TextEncoder, room: int) -> Iterator[PretrainInput]:
    """Yield pieces of at most `room` tokens; a text without tokens yields none."""
    for text, pieces in zip(texts, encoder.tokens_of(texts), strict=True):
        size = len(text.encode()) + 1
        for piece in _parts(pieces, room):
            yield PretrainInput(ids=piece.ids, words=piece.words, middle=0, size=size)
            size = 0


def cut_documents(
    documents: Sequence[str], encoder: TextEncoder, room: int, random: np.random.Generator
) -> Iterator[PretrainInput]:
    """Yield pairs of adjacent segments of documents; each line is a segment.

    Segments are grouped up to `room` tokens, and each group is split at a random segment boundary.
    A tenth of the pairs gets a random smaller budget (Lan et al. 2020,
    https://arxiv.org/abs/1909.11942). A segment longer than half of `room` is split. A single
    segment yields an input without a second segment.
    """
    lines = [document.split("\n") for document in documents]
    pieces = iter(encoder.tokens_of([line for document in lines for line in document]))
    for document in lines:
        segments = [
            part
            for _, line in zip(document, pieces, strict=False)
            for part in _parts(line, room // 2)
        ]
        size = sum(len(line.encode()) + 1 for line in document)
        for group in _groups(segments, room, random):
            yield _join(group, int(random.integers(1, max(2, len(group)))), size)
            size = 0


def _parts(pieces: TextTokens, room: int) -> Iterator[TextTokens]:
    for start in range(0, len(pieces.ids), room):
        span = slice(start, start + room)
        yield TextTokens(ids=pieces.ids[span], words=pieces.words[span])


def _groups(
    segments: Sequence[TextTokens], room: int, random: np.random.Generator
) -> Iterator[list[TextTokens]]:
    """Yield groups of adjacent segments that fit into the token budget."""
    group: list[TextTokens] = []
    tokens, budget = 0, _token_budget(room, random)
    for segment in segments:
        if group and tokens + len(segment.ids) > room:
            yield group
            group, tokens, budget = [], 0, _token_budget(room, random)
        group.append(segment)
        tokens += len(segment.ids)
        if tokens >= budget and len(group) > 1:
            yield group
            group, tokens, budget = [], 0, _token_budget(room, random)
    if group:
        yield group


def _token_budget(room: int, random: np.random.Generator) -> int:
    return int(random.integers(2, room + 1)) if random.random() < SHORT_PAIR_RATE else room


def _join(group: Sequence[TextTokens], first: int, size: int) -> PretrainInput:
    """Join segments; the first `first` of them are the first half of the pair."""
    offset, words = 0, []
    for segment in group:
        words.append(segment.words + offset)
        offset = int(words[-1][-1]) + 1
    middle = sum(len(segment.ids) for segment in group[:first]) if len(group) > 1 else 0
    ids = np.concatenate([segment.ids for segment in group])
    return PretrainInput(ids=ids, words=np.concatenate(words), middle=middle, size=size)


def unspaced(text: str) -> bool:
    """Whether a text contains a character of a script without spaces."""
    return any(low <= ord(character) <= high for character in text for low, high in BLOCKS)


def unspaced_ids(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return for each id of a vocabulary whether it is in a script without spaces, bool [V].

    A byte-level token that is only part of a character is not: it stays with its neighbours.
    """
    vocabulary = tokenizer.get_vocab()
    unspaced_V = np.zeros(max(vocabulary.values()) + 1, bool)
    for token, index in vocabulary.items():
        readable = token if token.isascii() or unspaced(token) else tokenizer.decode([index])
        unspaced_V[index] = unspaced(readable)
    return unspaced_V
