"""Texts and documents are cut into the inputs of pretraining.

Shapes: T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.text.encoding import Pieces, TextEncoder

SHORTER = 0.1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cut:
    """Tokens that one input is made of.

    Attributes:
        ids: int32 [T], T >= 1.
        words: int32 [T], the number of the word that a token is of.
        middle: tokens of the first of two segments, or 0 for one piece.
        size: about the bytes that it takes in its file.
    """

    ids: NDArray[np.int32]
    words: NDArray[np.int32]
    middle: int
    size: int


def cut_texts(texts: Sequence[str], encoder: TextEncoder, room: int) -> Iterator[Cut]:
    """Yield pieces of at most `room` tokens; a text without tokens gives none."""
    for text, found in zip(texts, encoder.pieces(texts), strict=True):
        size = len(text.encode()) + 1
        for piece in _parts(found, room):
            yield Cut(ids=piece.ids, words=piece.words, middle=0, size=size)
            size = 0


def cut_documents(
    documents: Sequence[str], encoder: TextEncoder, room: int, random: np.random.Generator
) -> Iterator[Cut]:
    """Yield pairs of neighbouring segments of documents, a segment a line.

    As many segments as `room` has tokens for are cut in two between segments, by chance; a tenth of
    the pairs gets less room, also by chance, so that not all are full (Lan et al. 2020,
    https://arxiv.org/abs/1909.11942). A segment longer than half the room is cut. One that stands
    alone is a piece without a second.
    """
    lines = [document.split("\n") for document in documents]
    found = iter(encoder.pieces([line for document in lines for line in document]))
    for document in lines:
        segments = [
            part
            for _, line in zip(document, found, strict=False)
            for part in _parts(line, room // 2)
        ]
        size = sum(len(line.encode()) + 1 for line in document)
        for group in _groups(segments, room, random):
            yield _joined(group, int(random.integers(1, max(2, len(group)))), size)
            size = 0


def _parts(pieces: Pieces, room: int) -> Iterator[Pieces]:
    for start in range(0, len(pieces.ids), room):
        span = slice(start, start + room)
        yield Pieces(ids=pieces.ids[span], words=pieces.words[span])


def _groups(
    segments: Sequence[Pieces], room: int, random: np.random.Generator
) -> Iterator[list[Pieces]]:
    """Yield neighbouring segments that fit together."""
    group: list[Pieces] = []
    tokens, wanted = 0, _wanted(room, random)
    for segment in segments:
        if group and tokens + len(segment.ids) > room:
            yield group
            group, tokens, wanted = [], 0, _wanted(room, random)
        group.append(segment)
        tokens += len(segment.ids)
        if tokens >= wanted and len(group) > 1:
            yield group
            group, tokens, wanted = [], 0, _wanted(room, random)
    if group:
        yield group


def _wanted(room: int, random: np.random.Generator) -> int:
    return int(random.integers(2, room + 1)) if random.random() < SHORTER else room


def _joined(group: Sequence[Pieces], first: int, size: int) -> Cut:
    """Join segments, of which so many are the first half."""
    apart, words = 0, []
    for segment in group:
        words.append(segment.words + apart)
        apart = int(words[-1][-1]) + 1
    middle = sum(len(segment.ids) for segment in group[:first]) if len(group) > 1 else 0
    ids = np.concatenate([segment.ids for segment in group])
    return Cut(ids=ids, words=np.concatenate(words), middle=middle, size=size)


# Unicode blocks: Thai and Lao, Myanmar, Khmer, kana, and the ideographs that BERT splits.
BLOCKS = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F)),
)


def unspaced(text: str) -> bool:
    """Whether a character of a text is of such writing."""
    return any(low <= ord(character) <= high for character in text for low, high in BLOCKS)


def unspaced_ids(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return for each id of a vocabulary whether its token is of such writing, bool [V].

    A token of a byte-level vocabulary that is part of a character only is not: it stays with its
    neighbours.
    """
    vocabulary = tokenizer.get_vocab()
    found_V = np.zeros(max(vocabulary.values()) + 1, bool)
    for token, index in vocabulary.items():
        readable = token if token.isascii() or unspaced(token) else tokenizer.decode([index])
        found_V[index] = unspaced(readable)
    return found_V
