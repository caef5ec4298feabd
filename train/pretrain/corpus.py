"""Texts to pretrain on become a token cache: pieces of text, and which of them share a row.

The cache is flat memory-mapped arrays, as that of `train.data`, and is made in constant memory.

Shapes: N inputs, S tokens of all of them, R rows.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.data.examples import Source, chunks
from pipework.errors import ConfigError, DataError
from pipework.progress import Progress
from pipework.run_folder.files import sole_writer, write_atomically
from pipework.text.encoding import TextEncoder
from pipework.text.packing import bins
from pipework.text.special_tokens import Frame
from pipework.train.data.disk_cache import cache_folder, digest, made, name_of
from pipework.train.data.token_cache import COMPLETE
from pipework.train.pretrain.segments import Cut, cut_documents, cut_texts, unspaced_ids

CHUNK = 512  # rows of a file; a document of the longest kind has a thousand segments
PACKED = 16_384  # inputs that are distributed over rows together
FILES: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "units": np.bool_,
    "offsets": np.int64,
    "middles": np.int32,
    "order": np.int64,
    "rows": np.int64,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A split to pretrain on. Input i is ids[offsets[i]:offsets[i + 1]], without special tokens.

    Attributes:
        ids: int32 [S].
        units: bool [S], whether a token begins a word, or stands in writing without spaces.
        offsets: int64 [N + 1].
        middles: int32 [N], the tokens of the first of two segments that follow one another; 0 for
            an input that is one piece.
        order: int64 [N], the inputs row by row.
        rows: int64 [R + 1]: the inputs of row r are order[rows[r]:rows[r + 1]].
        lengths: int64 [R], tokens of each row, special ones included.
    """

    ids: NDArray[np.int32]
    units: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    middles: NDArray[np.int32]
    order: NDArray[np.int64]
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        """Return R."""
        return len(self.rows) - 1

    @property
    def inputs(self) -> int:
        """N."""
        return len(self.middles)

    @property
    def pairs(self) -> int:
        """How many inputs are two segments."""
        return int(np.count_nonzero(self.middles))

    def of_row(self, row: int) -> list[int]:
        """Return the inputs of a row."""
        found: list[int] = self.order[self.rows[row] : self.rows[row + 1]].tolist()
        return found


@dataclass(frozen=True, kw_only=True)
class Laying:
    """How texts are cut and laid into rows.

    Attributes:
        max_length: tokens of an input, special ones included.
        row_tokens: of a row; never fewer than `max_length`.
        pairs: whether rows of the file are documents whose segments are to be paired.
    """

    max_length: int
    row_tokens: int
    pairs: bool


def corpus(source: Source, tokenizer: str, laying: Laying, progress: Progress) -> Corpus:
    """Open the token cache of a data file, building it first where there is none.

    Memory stays constant however long the file is, but for 8 bytes an input. A build that was
    interrupted begins anew. `tokenizer` is JSON.

    Raises:
        DataError: as `Source.rows`, and for no text at all.
    """
    parts = ("corpus", version("tokenizers"), tokenizer, laying)
    name = name_of((*parts, digest(source.path), source.reading(), source.part))
    folder = made(cache_folder() / name)
    opened = Tokenizer.from_str(tokenizer)
    frame = Frame.of(opened)
    with sole_writer(folder, wait=True):  # a second run on the same data finds it complete
        if not (folder / COMPLETE).is_file():
            encoder = TextEncoder(opened, max_length=laying.max_length, type_ids=False)
            cut = _cut(source, encoder, frame, laying)
            _write(folder, source, cut, unspaced_ids(opened), progress)
            _pack(folder, frame, laying)
            write_atomically(folder / COMPLETE, b"")
    return _open(folder, frame)


def _cut(source: Source, encoder: TextEncoder, frame: Frame, laying: Laying) -> Iterator[Cut]:
    """Yield the inputs of a file; which text is cut where is the same each time."""
    room = laying.max_length - (frame.of_pair if laying.pairs else frame.of_one)
    if room < (2 if laying.pairs else 1):
        message = f"model.max_length {laying.max_length} leaves no token of text"
        raise ConfigError(message, "raise it")
    random = np.random.default_rng(0)
    for chunk in chunks(source.rows(), CHUNK):
        if laying.pairs:
            yield from cut_documents([row.text for row in chunk], encoder, room, random)
        else:
            yield from cut_texts([row.text for row in chunk], encoder, room)


def _write(
    folder: Path, source: Source, cut: Iterator[Cut], unspaced_V: NDArray[np.bool_], bar: Progress
) -> None:
    streams = {name: (folder / name).open("wb") for name in ("ids", "units", "offsets", "middles")}
    end = 0
    bar.begin(f"tokenize {source.path.name}", source.path.stat().st_size, "bytes")
    try:
        np.zeros(1, np.int64).tofile(streams["offsets"])
        while some := list(islice(cut, PACKED)):
            np.concatenate([one.ids for one in some]).tofile(streams["ids"])
            np.concatenate([_units(one, unspaced_V) for one in some]).tofile(streams["units"])
            offsets = end + np.cumsum([len(one.ids) for one in some], dtype=np.int64)
            offsets.tofile(streams["offsets"])
            np.array([one.middle for one in some], np.int32).tofile(streams["middles"])
            end = int(offsets[-1])
            bar.advance(sum(one.size for one in some))
        if end == 0:
            message = f"{source.path} holds no text"
            raise DataError(message, "check the file, and data.columns.text")
    finally:
        _close(streams.values())
        bar.end()


def _units(cut: Cut, unspaced_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return where something begins that is hidden whole."""
    alone_T = unspaced_V[cut.ids]
    begins_T = np.ones(len(cut.ids), bool)
    begins_T[1:] = (cut.words[1:] != cut.words[:-1]) | alone_T[1:] | alone_T[:-1]
    return begins_T


def _pack(folder: Path, frame: Frame, laying: Laying) -> None:
    """Distribute inputs over rows, so many of them at a time as are sorted quickly."""
    lengths_N = _lengths(_array(folder, "offsets"), _array(folder, "middles"), frame)
    most = max(laying.row_tokens, laying.max_length)
    streams = {name: (folder / name).open("wb") for name in ("order", "rows")}
    end = 0
    try:
        np.zeros(1, np.int64).tofile(streams["rows"])
        for start in range(0, len(lengths_N), PACKED):
            rows = bins(lengths_N[start : start + PACKED].tolist(), most)
            order = [index + start for row in rows for index in row]
            np.array(order, np.int64).tofile(streams["order"])
            ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
            ends.tofile(streams["rows"])
            end = int(ends[-1])
    finally:
        _close(streams.values())


def _lengths(
    offsets: NDArray[np.int64], middles: NDArray[np.int32], frame: Frame
) -> NDArray[np.int64]:
    """Return the tokens of each input, special ones included, int64 [N]."""
    return np.diff(offsets) + np.where(middles > 0, frame.of_pair, frame.of_one)


def _open(folder: Path, frame: Frame) -> Corpus:
    arrays = {name: _array(folder, name) for name in FILES}
    lengths_N = _lengths(arrays["offsets"], arrays["middles"], frame)
    lengths_R = np.add.reduceat(lengths_N[arrays["order"]], arrays["rows"][:-1])
    return Corpus(**arrays, lengths=lengths_R)


def _array(folder: Path, name: str) -> NDArray[Any]:
    return np.memmap(folder / name, FILES[name], mode="r")


def _close(streams: Iterable[BinaryIO]) -> None:
    for stream in streams:
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()
