"""Rows whose text is nearly the same as a text of an earlier file, by MinHash.

Two texts are compared by the share of their common pieces of 8 bytes (Jaccard index), without
regard to case and white space. Equal MinHash values (Broder 1997) find the candidates, which are
then compared exactly: pairs with an index of 0.8 are found with a probability of 96 %.

Shapes: B rows of a chunk, K bands, P bytes of all texts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pipework.data.examples import Example, Source, chunks
from pipework.progress import Progress, counted

BANDS = 6
HASHES = 4  # of a band
PIECE = 8  # bytes
CHUNK = 4096
NO_PIECE = np.uint64((1 << 64) - 1)
MIX = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 divided by the golden ratio
FACTORS = np.random.default_rng(0).integers(1, 1 << 62, (BANDS, HASHES), np.uint64) * 2 + 1
Keys = NDArray[np.uint64]
Pair = tuple[int | None, int | None]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class _Row:
    split: str
    line: int | None
    text: bytes


def near_duplicates(
    sources: Mapping[str, Source], rows: Mapping[str, int], threshold: float, progress: Progress
) -> Iterator[str]:
    """Yield findings about rows of a file that are nearly the same as a row of an earlier file.

    Rows with equal texts are left out. All files but the first are held in memory.

    Args:
        sources: the files by split name.
        rows: their numbers of rows.
        threshold: smallest Jaccard index, from 0 to 1, of two texts that are nearly the same.
        progress: receives the number of compared rows.
    """
    names = list(sources)
    keyed = {name: partial(_rows, name, sources[name], rows[name], progress) for name in names}
    index = _index(chain.from_iterable(keyed[name]() for name in names[1:]))
    for position, name in enumerate(names[:-1], start=1):
        pairs: dict[str, dict[int, Pair]] = {later: {} for later in names[position:]}
        for row, keys_K in keyed[name]():
            for found in _similar(row, [index.get(key, []) for key in keys_K.tolist()], threshold):
                if found.split in pairs:
                    pairs[found.split].setdefault(id(found), (row.line, found.line))
        for later, lines in pairs.items():
            if lines:
                yield _finding(name, later, [*lines.values()], threshold)


def _index(rows: Iterable[tuple[_Row, Keys]]) -> dict[int, list[_Row]]:
    """Return rows by the keys of their bands."""
    index: dict[int, list[_Row]] = defaultdict(list)
    for row, keys_K in rows:
        for key in keys_K.tolist():
            index[key].append(row)
    return index


def _finding(earlier: str, later: str, lines: Sequence[Pair], threshold: float) -> str:
    first, second = lines[0]
    return (
        f"{counted(len(lines), 'row')} of {later} nearly the same as a row of {earlier}, such as "
        f"lines {second} and {first}: scores on {later} may be too high "
        f"(data.near_duplicates = {threshold:g}, 0 for no check)"
    )


def _rows(name: str, source: Source, count: int, progress: Progress) -> Iterator[tuple[_Row, Keys]]:
    """Yield the rows of a file that have a piece, with the keys of their bands, [K]."""
    with progress.stage(f"compare {name}", count, "rows"):
        for chunk in chunks(source.rows(), CHUNK):
            texts = [_folded(example) for example in chunk]
            for example, text, keys_K in zip(chunk, texts, band_keys(texts), strict=True):
                if len(text) >= PIECE:
                    yield _Row(split=name, line=example.line, text=text), keys_K
            progress.advance(len(chunk))


def _similar(row: _Row, candidates: Sequence[Sequence[_Row]], threshold: float) -> Iterator[_Row]:
    """Yield each candidate that is nearly the same as a row once."""
    for found in {id(found): found for found in chain.from_iterable(candidates)}.values():
        if found.text != row.text and _jaccard(row.text, found.text) >= threshold:
            yield found


def _folded(example: Example) -> bytes:
    text = f"{example.text} {example.text_pair or ''}"
    return " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")


def band_keys(texts: Sequence[bytes]) -> Keys:
    """Return a key for each band of each text, uint64 [B, K]."""
    sizes_B = np.array([len(text) + PIECE for text in texts])  # with zeros between the texts
    starts_B = np.cumsum(sizes_B) - sizes_B
    pieces_P = _pieces(bytes(PIECE).join((*texts, b"")))
    between_P = pieces_P == 0
    for offset in range(1, PIECE):  # pieces that end or start with these zeros
        between_P[offset:] |= pieces_P[:-offset] == 0
        between_P[:-offset] |= pieces_P[offset:] == 0
    pieces_P = (pieces_P ^ (pieces_P >> np.uint64(31))) * MIX
    keys_BK = np.zeros((len(texts), BANDS), np.uint64)
    for band, factors in enumerate(FACTORS):
        keys_BK[:, band] = band
        for factor in factors:
            hashes_P = (pieces_P * factor) >> np.uint64(32)
            hashes_P[between_P] = NO_PIECE
            keys_BK[:, band] = keys_BK[:, band] * MIX + np.minimum.reduceat(hashes_P, starts_B)
    return keys_BK


def _pieces(text: bytes) -> Keys:
    """Return all pieces of a text as numbers."""
    return sliding_window_view(np.frombuffer(text, np.uint8), PIECE).copy().view(np.uint64).ravel()


def _jaccard(first: bytes, second: bytes) -> float:
    both = (set(_pieces(first).tolist()), set(_pieces(second).tolist()))
    return len(both[0] & both[1]) / len(both[0] | both[1])
