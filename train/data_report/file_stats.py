"""One data file while the data report reads it: a few arrays, however many rows there are.

A row leaves 16 bytes: a hash of its text and one of its label (for a regression, the value). Both
are compared only inside one process, so Python's own 64-bit hashes do: that two of five million
different texts share one has odds of one in a million.

Shapes: N rows, B rows of a chunk, L lengths, U distinct texts.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Label, Source, chunks, resolve_label
from pipework.errors import DataError
from pipework.progress import Progress
from pipework.run_folder.task import TaskKind
from pipework.text.encoding import TextEncoder

CHUNK = 4096
TOKENIZED_ROWS = 200_000
NO_LABEL = "(none)"
NAN = float("nan")


class Lengths:
    """How often each length occurs: as large as the longest, not as many as there are rows."""

    def __init__(self) -> None:
        """Know of no row yet."""
        self._counts_L: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, lengths_B: Sequence[int]) -> None:
        """Count the lengths of more rows."""
        counts_L = np.bincount(lengths_B, minlength=len(self._counts_L))
        counts_L[: len(self._counts_L)] += self._counts_L
        self._counts_L = counts_L

    @property
    def rows(self) -> int:
        """How many rows were counted."""
        return int(self._counts_L.sum())

    @property
    def total(self) -> int:
        """The sum of all lengths."""
        return int(self._counts_L @ np.arange(len(self._counts_L)))

    def at_least(self, length: int) -> int:
        """Count the rows of a length or longer."""
        return int(self._counts_L[length:].sum())

    def percentiles(self) -> tuple[int, int, int]:
        """Return the lengths that half, 95 % and all of the rows do not exceed."""
        shares = np.array([0.5, 0.95, 1.0])
        ranks = np.ceil(shares * self.rows).astype(np.int64)
        median, high, top = np.searchsorted(np.cumsum(self._counts_L), ranks)
        return int(median), int(high), int(top)


class Reading:
    """What is known of one file, chunk by chunk.

    Attributes:
        labels: rows by label; a row with several counts for each. Empty for a regression.
        characters: lengths of all rows, both texts of a pair together.
        tokens: lengths of the rows that were tokenized.
        unknown: unknown tokens among them, or None for a tokenizer that has no such token.
        empty: rows whose text is empty.
    """

    def __init__(self, names: Sequence[str] | None, kind: TaskKind) -> None:
        """Name labels that are numbers by `names`; those of a regression are values."""
        self.labels: Counter[str] = Counter()
        self.characters = Lengths()
        self.tokens = Lengths()
        self.unknown: int | None = None
        self.empty = 0
        self._names = names
        self._index = {label: place for place, label in enumerate(names or ())}
        self._kind = kind
        self._texts: list[NDArray[np.int64]] = []
        self._keys: list[NDArray[np.int64]] = []

    @classmethod
    def of(
        cls,
        source: Source,
        names: Sequence[str] | None,
        encoder: TextEncoder | None,
        progress: Progress,
    ) -> Self:
        """Read a file, tokenizing about TOKENIZED_ROWS rows spread evenly over it, or all if fewer.

        Raises:
            DataError: a row that cannot be read, or no rows.
        """
        reading = cls(names, source.kind)
        size, stride = _size(source), 0
        progress.begin(f"read {source.path.name}", size, "bytes")
        for chunk in chunks(source.rows(), CHUNK):
            read = _bytes(chunk)
            stride = stride or max(1, _rows(source, size * len(chunk) // read) // TOKENIZED_ROWS)
            reading.add(chunk)
            if encoder is not None:
                reading.tokenize(chunk[::stride], encoder)
            progress.advance(read)
        progress.end()
        if not reading._texts:
            message = f"{source.path} holds no rows"
            raise DataError(message, "check the file, and whether its first line is a header")
        return reading

    def add(self, chunk_B: Sequence[Example]) -> None:
        """Keep what the report needs of more rows."""
        self.characters.add([len(row.text) + len(row.text_pair or "") for row in chunk_B])
        self.empty += sum(not row.text or row.text.isspace() for row in chunk_B)
        self._texts.append(np.fromiter(map(_text_hash, chunk_B), np.int64, len(chunk_B)))
        if self._kind is TaskKind.REGRESSION:
            values_B = [NAN if row.label is None else float(str(row.label)) for row in chunk_B]
            self._keys.append(np.array(values_B, np.float64).view(np.int64))
        elif self._kind is TaskKind.PRETRAIN:
            self._keys.append(np.zeros(len(chunk_B), np.int64))
        else:
            self._keys.append(self._classes([row.label for row in chunk_B]))

    def tokenize(self, chunk_B: Sequence[Example], encoder: TextEncoder) -> None:
        """Count the tokens of rows, and the unknown ones among them."""
        encodings = encoder.encode(chunk_B)
        self.tokens.add([len(encoding) for encoding in encodings])
        if encoder.unknown_id is not None:
            ids = np.concatenate([encoding.ids for encoding in encodings])
            self.unknown = (self.unknown or 0) + int((ids == encoder.unknown_id).sum())

    def values(self) -> NDArray[np.float64]:
        """Return the values of a regression, float64 [N]; NaN where a row has none."""
        return np.concatenate(self._keys).view(np.float64)

    def texts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the distinct texts, int64 [U], sorted, and the rows that each has, int64 [U]."""
        texts_U, rows_U = np.unique(np.concatenate(self._texts), return_counts=True)
        return texts_U, rows_U

    def conflicting(self) -> int:
        """Count the texts whose rows do not all have the same label."""
        texts_N, keys_N = np.concatenate(self._texts), np.concatenate(self._keys)
        order_N = np.lexsort((keys_N, texts_N))
        texts_N, keys_N = texts_N[order_N], keys_N[order_N]
        differs = (texts_N[1:] == texts_N[:-1]) & (keys_N[1:] != keys_N[:-1])
        return len(np.unique(texts_N[1:][differs]))

    def _classes(self, labels_B: Sequence[Label | None]) -> NDArray[np.int64]:
        hashes: dict[Label | None, int] = {}
        for label, rows in Counter(labels_B).items():
            names = tuple(sorted({self._name(one) for one in _each(label)}))
            hashes[label] = hash(names)
            for name in names:
                self.labels[name] += rows
        return np.fromiter((hashes[label] for label in labels_B), np.int64, len(labels_B))

    def _name(self, label: str) -> str:
        place = resolve_label(label, self._index)
        return label if place is None or self._names is None else self._names[place]


def _each(label: Label | None) -> Iterable[str]:
    return (NO_LABEL,) if label is None else (label,) if isinstance(label, str) else label


def _text_hash(row: Example) -> int:
    pair = row.text_pair
    folded = " ".join(row.text.casefold().split())
    return hash((folded, pair and " ".join(pair.casefold().split()), row.entities))


def _bytes(chunk: Sequence[Example]) -> int:
    """Return about the bytes that rows take in their file: its separators are guessed."""
    texts = "\n".join(f"{row.text}\t{row.text_pair or ''}\t{row.label or ''}" for row in chunk)
    return len(texts.encode("utf-8", "surrogatepass"))


def _rows(source: Source, rows_of_file: int) -> int:
    """Return about how many rows there are, for a file of about so many."""
    part = source.part
    if part is None:
        return rows_of_file
    return part.rows if part.held_out else rows_of_file - part.rows


def _size(source: Source) -> int:
    return source.path.stat().st_size if source.path.is_file() else 0
