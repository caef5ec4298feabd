"""Collect the statistics of a data file in 16 bytes per row.

Shapes: N rows, B rows of a chunk, L lengths, U distinct texts.
"""

# A row is stored as a hash of its text and a hash of its label (for a regression, the value).
# Python's 64-bit hashes are only compared inside a process. The probability that two of five
# million different texts have the same hash is one in a million.

from collections import Counter
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source, chunks, folded_text
from pipework.progress import Progress
from pipework.run_folder.read_options import Reading
from pipework.tasks.labels import Label, label_names, resolve_label
from pipework.tasks.task import Task
from pipework.text.encoding import TextEncoder
from pipework.train.data.token_cache import no_rows, row_bytes
from pipework.train.data_report.span_stats import SpanStats
from pipework.train.data_report.text_defects import count_defects

CHUNK = 4096
TOKENIZED_ROWS = 200_000
NO_LABEL = "(none)"
WINDOW_SHARE = 4  # neighbouring windows share a quarter of their tokens
HEADER_ROWS = 5  # mean rows of a label, from which a label of a single row is unusual
NAN = float("nan")


class Lengths:
    """A histogram of lengths; its size is the longest length."""

    def __init__(self) -> None:
        self._counts_L: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, lengths_B: Sequence[int]) -> None:
        """Add the lengths of more rows."""
        counts_L = np.bincount(lengths_B, minlength=len(self._counts_L))
        counts_L[: len(self._counts_L)] += self._counts_L
        self._counts_L = counts_L

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._counts_L.sum())

    def total_up_to(self, limit: int) -> int:
        """Sum of all lengths, each at most `limit`."""
        return int(self._counts_L @ np.minimum(np.arange(len(self._counts_L)), limit))

    def above(self, limit: int) -> int:
        """Number of rows that are longer than `limit`."""
        return int(self._counts_L[limit + 1 :].sum())

    def limit_for(self, share: float) -> int:
        """Return the smallest limit that at most this share of the rows exceeds."""
        return int(np.searchsorted(np.cumsum(self._counts_L), (1 - share) * self.rows))

    def windows(self, limit: int) -> int:
        """Number of windows of `limit` tokens, of which neighbours share a quarter, of all rows."""
        lengths_L = np.arange(len(self._counts_L))
        longer_L = np.maximum(lengths_L - limit, 0)
        return int(self._counts_L @ (1 + -(-longer_L // max(1, limit - limit // WINDOW_SHARE))))

    def percentiles(self) -> tuple[int, int, int]:
        """Return the lengths that half, 95 % and all of the rows do not exceed."""
        shares = np.array([0.5, 0.95, 1.0])
        ranks = np.ceil(shares * self.rows).astype(np.int64)
        median, high, top = np.searchsorted(np.cumsum(self._counts_L), ranks)
        return int(median), int(high), int(top)


class FileStats:
    """Statistics of a file, updated chunk by chunk.

    Attributes:
        labels: number of rows by label; a multi-label row counts for each of its labels. Empty
            for a regression.
        characters: lengths of all rows, both texts of a pair together.
        tokens: lengths of the tokenized rows before truncation.
        unknown: number of unknown tokens in these rows, or None for a tokenizer without an unknown
            token.
        empty: number of rows with an empty text.
        defects: number of rows by kind of damage, see `text_defects`.
        headers: number of rows that repeat the names of the columns.
        spans: of a task that finds spans.
        first: the label of the first row, if it has one label.
    """

    def __init__(
        self, names: Sequence[str] | None, task: type[Task], columns: Reading | None = None
    ) -> None:
        """Create empty statistics; `names` are the classes, if the file holds their indices."""
        self.labels: Counter[str] = Counter()
        self.characters = Lengths()
        self.tokens = Lengths()
        self.unknown: int | None = None
        self.empty = 0
        self.defects = Counter[str]()
        self.headers = 0
        self.without_labels = 0
        self.first: str | None = None
        self.spans = SpanStats()
        self._names = names
        self._index = {label: position for position, label in enumerate(names or ())}
        self._task = task
        self._header = columns and (columns.text, columns.label)
        self._texts: list[NDArray[np.int64]] = []
        self._keys: list[NDArray[np.int64]] = []
        self._tokens: list[tuple[int, int]] = []  # hashes of tokens and text

    @classmethod
    def of(
        cls,
        source: Source,
        names: Sequence[str] | None,
        encoder: TextEncoder | None,
        progress: Progress,
    ) -> Self:
        """Read a file; tokenize about TOKENIZED_ROWS evenly spaced rows, or all if fewer.

        Raises:
            DataError: a row cannot be read, or the file has no rows.
        """
        stats = cls(names, source.task, source.reading)
        size, stride = _size(source), 0
        rest = size
        with progress.stage(f"read {source.path.name}", size, "bytes"):
            for chunk in chunks(source.rows(), CHUNK):
                read = sum(map(row_bytes, chunk))
                stride = stride or max(
                    1, _rows(source, size * len(chunk) // read) // TOKENIZED_ROWS
                )
                stats.add(chunk)
                if encoder is not None:
                    stats.tokenize(chunk[::stride], encoder)
                progress.advance(read)
                rest -= read
            progress.advance(max(0, rest))  # columns that were not read
        if not stats._texts:
            raise no_rows(source)
        return stats

    def add(self, chunk_B: Sequence[Example]) -> None:
        """Add the lengths, texts and labels of more rows."""
        self.characters.add([len(row.text) + len(row.text_pair or "") for row in chunk_B])
        self.empty += sum(not row.text or row.text.isspace() for row in chunk_B)
        self.defects += count_defects([f"{row.text}\n{row.text_pair or ''}" for row in chunk_B])
        self.headers += sum((row.text, row.label) == self._header for row in chunk_B)
        self.spans.add(chunk_B if self._task.rows_per_token else [])
        self._texts.append(np.fromiter(map(folded_text, chunk_B), np.int64, len(chunk_B)))
        if self._task.has_values:
            values_B = [NAN if row.label is None else float(str(row.label)) for row in chunk_B]
            self._keys.append(np.array(values_B, np.float64).view(np.int64))
        elif not self._task.predicts:
            self._keys.append(np.zeros(len(chunk_B), np.int64))
        else:
            label = chunk_B[0].label
            if not self._keys and isinstance(label, str):
                self.first = self._name(label)
            self._keys.append(self._classes([row.label for row in chunk_B]))

    def tokenize(self, chunk_B: Sequence[Example], encoder: TextEncoder) -> None:
        """Add the token counts of rows."""
        encodings = encoder.encode(chunk_B)
        self.tokens.add([len(encoding) for encoding in encodings])
        hashes_B = (hash(encoding.ids.tobytes()) for encoding in encodings)
        self._tokens += zip(hashes_B, map(folded_text, chunk_B), strict=True)
        if encoder.unknown_id is not None:
            ids = np.concatenate([encoding.ids for encoding in encodings])
            self.unknown = (self.unknown or 0) + int((ids == encoder.unknown_id).sum())

    def header(self) -> str | None:
        """Return the label of the first row if it looks like a header: no other row has it."""
        rows, labels = self.characters.rows, len(self.labels)
        alone = self.first is not None and self.labels[self.first] == 1
        return self.first if alone and rows > HEADER_ROWS * labels else None

    def same_tokens(self) -> int:
        """Return the number of tokenized texts with the tokens of another text."""
        texts = Counter(tokens for tokens, _ in {*self._tokens})
        return sum(count for count in texts.values() if count > 1)

    def values(self) -> NDArray[np.float64]:
        """Return the targets of a regression, float64 [N]; NaN for a row without target."""
        return np.concatenate(self._keys).view(np.float64)

    def texts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sorted hashes of distinct texts and their numbers of rows, each int64 [U]."""
        texts_U, rows_U = np.unique(np.concatenate(self._texts), return_counts=True)
        return texts_U, rows_U

    def conflicting(self) -> int:
        """Return the number of texts that occur with different labels."""
        texts_N, keys_N = np.concatenate(self._texts), np.concatenate(self._keys)
        order_N = np.lexsort((keys_N, texts_N))
        texts_N, keys_N = texts_N[order_N], keys_N[order_N]
        differs = (texts_N[1:] == texts_N[:-1]) & (keys_N[1:] != keys_N[:-1])
        return len(np.unique(texts_N[1:][differs]))

    def _classes(self, labels_B: Sequence[Label | None]) -> NDArray[np.int64]:
        hashes: dict[Label | None, int] = {}
        for label, rows in Counter(labels_B).items():
            parts = (NO_LABEL,) if label is None else label_names(label)
            names = tuple(sorted({self._name(part) for part in parts}))
            hashes[label] = hash(label if self._task.rows_per_token else names)
            self.without_labels += 0 if names else rows
            for name in names:
                self.labels[name] += rows
        return np.fromiter((hashes[label] for label in labels_B), np.int64, len(labels_B))

    def _name(self, label: str) -> str:
        position = resolve_label(label, self._index)
        return label if position is None or self._names is None else self._names[position]


def _rows(source: Source, rows_of_file: int) -> int:
    """Estimate the number of rows of a source from the rows of its file."""
    part = source.part
    if part is None:
        return rows_of_file
    rows = rows_of_file
    if part.rows is not None:
        rows = part.rows if part.held_out else rows_of_file - part.rows
    return rows if part.limit is None else min(rows, part.limit)


def _size(source: Source) -> int:
    return source.path.stat().st_size if source.path.is_file() else 0
