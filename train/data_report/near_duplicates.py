"""Rows whose text is nearly the same as a text of an earlier file, by MinHash.

Two texts are compared by the share of their common pieces of 8 bytes (Jaccard index), without
regard to case and white space. Equal MinHash values (Broder 1997) find the candidates, which are
then compared exactly: pairs with an index of 0.8 are found with a probability of 96 %.

Shapes: B rows of a chunk, K bands, P bytes of all texts.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(kw_only=True, eq=False)
class _Index:
    """The rows of the later files by the keys of their bands."""

    threshold: float
    rows: dict[int, list[_Row]] = field(default_factory=lambda: defaultdict(list))

    def add(self, row: _Row, keys_K: Keys) -> None:
        for key in keys_K.tolist():
            self.rows[key].append(row)

    def similar(self, row: _Row, keys_K: Keys, splits: Sequence[str]) -> Iterator[_Row]:
        """Yield the rows of splits that are nearly the same as another row."""
        candidates = {
            id(found): found for key in keys_K.tolist() for found in self.rows.get(key, ())
        }
        for found in candidates.values():
            other = found.split in splits and found.text != row.text
            if other and _jaccard(row.text, found.text) >= self.threshold:
                yield found


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
    index = _Index(threshold=threshold)
    for name in names[1:]:
        with progress.stage(f"compare {name}", rows[name], "rows"):
            for row, keys_K in _rows(name, sources[name], progress):
                index.add(row, keys_K)
    for position, name in enumerate(names[:-1], start=1):
        pairs: dict[str, dict[int, Pair]] = defaultdict(dict)
        with progress.stage(f"compare {name}", rows[name], "rows"):
            for row, keys_K in _rows(name, sources[name], progress):
                for found in index.similar(row, keys_K, names[position:]):
                    pairs[found.split].setdefault(id(found), (row.line, found.line))
        for later, lines in pairs.items():
            first, second = next(iter(lines.values()))
            yield (
                f"{counted(len(lines), 'row')} of {later} nearly the same as a row of {name}, such "
                f"as lines {second} and {first}: scores on {later} may be too high "
                f"(data.near_duplicates = {threshold:g}, 0 for no check)"
            )


def _rows(name: str, source: Source, progress: Progress) -> Iterator[tuple[_Row, Keys]]:
    """Yield the rows of a file that have a piece, with the keys of their bands, [K]."""
    for chunk in chunks(source.rows(), CHUNK):
        texts = [_folded(example) for example in chunk]
        for example, text, keys_K in zip(chunk, texts, band_keys(texts), strict=True):
            if len(text) >= PIECE:
                yield _Row(split=name, line=example.line, text=text), keys_K
        progress.advance(len(chunk))


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
    windows = sliding_window_view(np.frombuffer(text, np.uint8), PIECE)
    return np.ascontiguousarray(windows).view(np.uint64).ravel()


def _jaccard(first: bytes, second: bytes) -> float:
    both = (set(_pieces(first).tolist()), set(_pieces(second).tolist()))
    return len(both[0] & both[1]) / len(both[0] | both[1])
