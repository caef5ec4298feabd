"""Rows become a token cache on disk, and the cache becomes batches of like length.

The cache is flat memory-mapped arrays, named by a digest of all that decides their content, so a
second launch starts at once and an edited file is never read stale.

Shapes: N rows, B rows of a batch, T tokens of the longest row of a batch.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipework import encoding, entities, evaluation, examples, lines, records
from pipework.encoding import Encoding, TextEncoder
from pipework.errors import DataError
from pipework.evaluation import truth
from pipework.examples import Example, Source, chunks
from pipework.lock import sole_writer
from pipework.manifest import Task, file_digest, write_atomically
from pipework.progress import Progress

MODULES = (encoding, entities, evaluation, examples, lines, records)
CODE = tuple(Path(str(module.__file__)) for module in MODULES)
CHUNK = 4096
MEGABATCH = 50
COMPLETE = "complete"
FILES = {"ids": np.int32, "type_ids": np.int8, "offsets": np.int64, "labels": np.int32}


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSet:
    """A split as token ids: row i is ids[offsets[i]:offsets[i + 1]].

    Attributes:
        ids: int32, all rows after one another.
        type_ids: int8, as long as `ids`, or empty for a family that has none.
        offsets: int64 [N + 1].
        labels: int32 [N].
    """

    ids: NDArray[np.int32]
    type_ids: NDArray[np.int8]
    offsets: NDArray[np.int64]
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        """Return N."""
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    def encoding(self, row: int) -> Encoding:
        """Return one row as the engines take it."""
        span = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
        return Encoding(
            ids=self.ids[span], type_ids=self.type_ids[span] if len(self.type_ids) else None
        )

    def encodings(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Encoding]:
        """Return rows as the engines take them."""
        return [self.encoding(int(row)) for row in rows]


def cache_folder() -> Path:
    """Return where token caches lie: $PIPEWORK_CACHE, else the user's cache folder."""
    given = os.environ.get("PIPEWORK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(home) / "pipework"


def token_set(
    source: Source,
    tokenizer: Path,
    encoder: TextEncoder,
    task: Task,
    progress: Progress,
) -> TokenSet:
    """Open the token cache of a data file, building it first where there is none.

    Memory stays constant however long the file is. A build that was interrupted begins anew.

    Raises:
        DataError: as `Source.rows`, and for an unknown label or no rows at all.
    """
    name = _cache_name(source, tokenizer, encoder, task)
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"the token cache {folder} cannot be written: {error.strerror}"
        raise DataError(message, "set PIPEWORK_CACHE to a folder that can") from error
    with sole_writer(folder, wait=True):  # a second run on the same data finds it complete
        if not (folder / COMPLETE).is_file():
            _write(folder, source, encoder, task, progress)
            write_atomically(folder / COMPLETE, b"")
    return _open(folder)


def _cache_name(source: Source, tokenizer: Path, encoder: TextEncoder, task: Task) -> str:
    if not source.path.is_file():
        message = f"{source.path} is not a file"
        raise DataError(message, "check data.root and the file names of [data]")
    parts = (
        version("tokenizers"),
        tuple(file_digest(path) for path in (*CODE, Path(__file__), source.path, tokenizer)),
        (source.reading(), source.part),
        (encoder.max_length, encoder.has_type_ids),
        (task.kind, task.labels),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _write(
    folder: Path, source: Source, encoder: TextEncoder, task: Task, progress: Progress
) -> None:
    streams = {name: (folder / name).open("wb") for name in FILES}
    end = 0
    progress.begin(f"tokenize {source.path.name}", source.path.stat().st_size, "bytes")
    try:
        np.zeros(1, np.int64).tofile(streams["offsets"])
        for chunk in chunks(source.rows(), CHUNK):
            end = _write_chunk(streams, chunk, encoder, truth(chunk, task, str(source.path)), end)
            progress.advance(sum(_bytes(example) for example in chunk))
    finally:
        for stream in streams.values():
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
        progress.end()


def _write_chunk(
    streams: Mapping[str, BinaryIO],
    chunk: Sequence[Example],
    encoder: TextEncoder,
    labels_N: NDArray[np.generic],
    end: int,
) -> int:
    encodings = encoder.encode(chunk)
    offsets_N = end + np.cumsum([len(encoding) for encoding in encodings], dtype=np.int64)
    np.concatenate([encoding.ids for encoding in encodings]).tofile(streams["ids"])
    types = [encoding.type_ids for encoding in encodings if encoding.type_ids is not None]
    if types:
        np.concatenate(types).tofile(streams["type_ids"])
    offsets_N.tofile(streams["offsets"])
    labels_N.tofile(streams["labels"])
    return int(offsets_N[-1])


def _bytes(example: Example) -> int:
    texts = (example.text, example.text_pair or "", str(example.label or ""))
    return sum(len(text.encode()) + 1 for text in texts if text)


def _open(folder: Path) -> TokenSet:
    arrays = {}
    for name, kind in FILES.items():
        path = folder / name
        empty = path.stat().st_size == 0
        arrays[name] = np.empty(0, kind) if empty else np.memmap(path, kind, mode="r")
    return TokenSet(**arrays)


def length_grouped(
    lengths_N: NDArray[np.int64], batch_size: int, random: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each batch of one epoch: every row once, like lengths together.

    Rows are shuffled, cut into megabatches, sorted by length inside each and cut into batches,
    whose order is shuffled again. Where one megabatch holds all rows the sort would make the same
    batches each epoch, so lengths get a tenth of noise.
    """
    order_N = random.permutation(len(lengths_N))
    key_N = lengths_N * random.uniform(0.9, 1.1, len(lengths_N))
    if len(order_N) > MEGABATCH * batch_size:
        key_N = lengths_N.astype(np.float64)
    batches = []
    for start in range(0, len(order_N), MEGABATCH * batch_size):
        mega = order_N[start : start + MEGABATCH * batch_size]
        mega = mega[np.argsort(key_N[mega], kind="stable")]
        batches += [mega[i : i + batch_size] for i in range(0, len(mega), batch_size)]
    for index in random.permutation(len(batches)):
        yield batches[index]
