"""Store the encoded rows of a data file in a token cache on disk.

The cache consists of flat memory-mapped arrays under a key of everything they depend on, so that a
second launch starts at once and an edited file is read again.

Shapes: N rows, C classes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from pipework.data.entities import Spans
from pipework.data.examples import Example, Source, chunks
from pipework.errors import DataError
from pipework.progress import Progress
from pipework.run_folder.files import write_atomically
from pipework.scoring.evaluation import label_array
from pipework.tasks.task import Task
from pipework.tasks.windows import Windows
from pipework.text.encoding import Encoding, TextEncoder, all_windows
from pipework.train.data.disk_cache import cache_entry, cache_key, source_content

CHUNK = 4096
CACHE_RATIO = 2  # approximate bytes of the cache per byte of the data file
COMPLETE = "complete"
FILES: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "type_ids": np.int8,
    "offsets": np.int64,
    "spans": np.int32,
}
NO_LABELS: NDArray[np.generic] = np.empty(0, np.int8)


class TokenRows(Protocol):
    """Rows of token ids with random access."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, int64 [N]."""

    def encodings(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Encoding]:
        """Return the encodings of rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSet:
    """A split as token ids: row i is ids[offsets[i]:offsets[i + 1]].

    Attributes:
        ids: int32, the concatenated rows.
        type_ids: int8, as long as `ids`, or empty for a model family without type ids.
        offsets: int64 [N + 1].
        spans: int32 [N, 4], the token spans of two entities, or empty for a task without entities.
        truth: labels as returned by `pipework.scoring.evaluation.label_array`, or empty.
    """

    ids: NDArray[np.int32]
    type_ids: NDArray[np.int8]
    offsets: NDArray[np.int64]
    spans: NDArray[np.int32]
    truth: NDArray[np.generic]

    def __len__(self) -> int:
        """Return N."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    def encoding(self, row: int) -> Encoding:
        """Return the encoding of a row."""
        span = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        return Encoding(
            ids=self.ids[span],
            type_ids=self.type_ids[span] if len(self.type_ids) else None,
            entity_spans=_spans(self.spans[row]) if len(self.spans) else None,
        )

    def encodings(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Encoding]:
        """Return the encodings of rows."""
        return [self.encoding(int(row)) for row in rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinedTokens:
    """The concatenated rows of several token sets."""

    parts: Sequence[TokenSet]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, int64 [N]."""
        return np.concatenate([part.lengths for part in self.parts])

    def encodings(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Encoding]:
        """Return the encodings of rows."""
        locations = locate_rows(list(map(len, self.parts)), rows)
        return [self.parts[part].encoding(row) for part, row in locations]


def locate_rows(
    lengths: Sequence[int], rows: Sequence[int] | NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Return the part and the index in this part for each index into the concatenated parts."""
    ends = np.cumsum(lengths)
    parts = np.searchsorted(ends, rows, side="right")
    starts = ends - np.asarray(lengths)
    return [(int(part), int(row - starts[part])) for part, row in zip(parts, rows, strict=True)]


def open_token_cache(
    source: Source,
    tokenizer: str,
    encoder: TextEncoder,
    task: Task | None,
    progress: Progress,
    windows: Windows | None = None,
) -> TokenSet:
    """Open the token cache of a data file; build it first if it is missing.

    Memory use does not depend on the size of the file. An interrupted build starts again.
    `tokenizer` is the encoder's tokenizer as JSON. Without a task no labels are read. With
    `windows`, each window of a longer text is a row with the labels of the text, or of its
    tokens.

    Raises:
        DataError: as `Source.rows`; or a label is unknown, the file has no rows, or the disk is
            full.
    """
    parts = (
        version("tokenizers"),
        (source_content(source), tokenizer),
        (encoder.max_length, encoder.has_type_ids),
        None if task is None else (task.kind, task.labels, task.tagged),
        *([] if windows is None else [windows.stride]),
    )
    with cache_entry(cache_key(parts), CACHE_RATIO * source.path.stat().st_size) as folder:
        if not (folder / COMPLETE).is_file():
            _write(folder, source, encoder, task, progress, windows)
            write_atomically(folder / COMPLETE, b"")
        return _open(folder, task)


def _write(
    folder: Path,
    source: Source,
    encoder: TextEncoder,
    task: Task | None,
    progress: Progress,
    windows: Windows | None,
) -> None:
    end, rest = 0, source.path.stat().st_size
    with progress.stage(f"tokenize {source.path.name}", rest, "bytes"):
        with write_streams(folder, (*FILES, "truth")) as streams:
            write_array(streams["offsets"], np.zeros(1, np.int64))
            for chunk in chunks(source.rows(), CHUNK):
                labels = NO_LABELS
                if task is not None:
                    labels = label_array(chunk, task, str(source.path), encoder, windows)
                if windows is None:
                    encodings: Sequence[Encoding] = encoder.encode(chunk)
                else:
                    firsts = encoder.encode_windows(chunk, windows)
                    encodings, _ = all_windows(firsts)
                    counts_N = [1 + len(first.others) for first in firsts]
                    if task is not None:
                        lengths_R = [len(window) for window in encodings]
                        labels = task.window_truth(labels, counts_N, lengths_R, encoder.max_length)
                end = _write_chunk(streams, encodings, labels, end)
                progress.advance(read := sum(map(row_bytes, chunk)))
                rest -= read
        if end == 0:
            raise no_rows(source)
        progress.advance(max(0, rest))  # columns that were not read


def no_rows(source: Source) -> DataError:
    """Return the error for a source that yields no rows."""
    if source.excluded and next(replace(source, excluded=()).rows(), None) is not None:
        message = f"{source.path} has no rows left: all are also in dev, test or calibration"
        return DataError(message, "set data.drop_leaked=false, or check data.train")
    message = f"{source.path} holds no rows"
    return DataError(message, "check the file, and whether its first line is a header")


def _write_chunk(
    streams: Mapping[str, BinaryIO],
    encodings: Sequence[Encoding],
    labels: NDArray[np.generic],
    end: int,
) -> int:
    offsets_N = end + np.cumsum([len(encoding) for encoding in encodings], dtype=np.int64)
    write_array(streams["ids"], np.concatenate([encoding.ids for encoding in encodings]))
    types = [encoding.type_ids for encoding in encodings if encoding.type_ids is not None]
    if types:
        write_array(streams["type_ids"], np.concatenate(types))
    write_array(streams["offsets"], offsets_N)
    write_array(streams["truth"], labels)
    spans = [encoding.entity_spans for encoding in encodings if encoding.entity_spans is not None]
    write_array(streams["spans"], np.array(spans, np.int32))
    return int(offsets_N[-1])


@contextmanager
def write_streams(folder: Path, names: Iterable[str]) -> Iterator[Mapping[str, BinaryIO]]:
    """Open files of a folder for writing; close them, and sync them unless there is an error."""
    with ExitStack() as stack:
        streams = {name: stack.enter_context((folder / name).open("wb")) for name in names}
        yield streams
        for stream in streams.values():
            stream.flush()
            os.fsync(stream.fileno())


def write_array(stream: BinaryIO, array: NDArray[Any]) -> None:
    """Append an array to a file. The errors of `tofile` lack the number of the system's error."""
    stream.write(np.ascontiguousarray(array).data)


def row_bytes(example: Example) -> int:
    """Estimate the size of a row in its file: the fields that were read, with separators."""
    texts = (example.text, example.text_pair or "", ",".join(example.labels))
    return sum(len(text.encode()) + 1 for text in texts if text)


def _open(folder: Path, task: Task | None) -> TokenSet:
    arrays = {name: _array(folder / name, kind) for name, kind in FILES.items()}
    truth = NO_LABELS if task is None else _array(folder / "truth", task.truth_type)
    if task is not None:
        truth = truth.reshape(len(arrays["offsets"]) - 1, *task.truth_shape)
    spans_N4 = arrays.pop("spans").reshape(-1, 4)
    return TokenSet(**arrays, spans=spans_N4, truth=truth)


def _array(path: Path, kind: type[np.generic]) -> NDArray[Any]:
    return np.memmap(path, kind, mode="r") if path.stat().st_size else np.empty(0, kind)


def _spans(spans_4: NDArray[np.int32]) -> Spans:
    start, end, second_start, second_end = (int(edge) for edge in spans_4)
    return (start, end), (second_start, second_end)
