"""The token cache of pretraining: pieces of text, packed into rows.

The cache consists of flat memory-mapped arrays, as in `train.data`, built in constant memory.

Shapes: N inputs, S tokens of all of them, R rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipework.data.examples import Source, chunks
from pipework.errors import ConfigError, DataError
from pipework.progress import Progress
from pipework.run_folder.files import write_atomically
from pipework.text.encoding import TextEncoder
from pipework.text.packing import best_fit_bins
from pipework.text.special_tokens import SpecialTokens
from pipework.train.data.disk_cache import cache_entry, cache_key, source_content
from pipework.train.data.token_cache import CACHE_RATIO, COMPLETE, write_array, write_streams
from pipework.train.pretrain.segments import PretrainInput, cut_documents, cut_texts, unspaced_ids

CHUNK = 512  # rows of a file; a long document has a thousand segments
PACKED = 16_384  # inputs that are packed together
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
    """A tokenized split for pretraining.

    Input i is ids[offsets[i]:offsets[i + 1]], without special tokens.

    Attributes:
        ids: int32 [S].
        units: bool [S], whether a token starts a word, or is in a script without spaces.
        offsets: int64 [N + 1].
        middles: int32 [N], number of tokens of the first of two adjacent segments; 0 for an input
            with one segment.
        order: int64 [N], the inputs row by row.
        rows: int64 [R + 1]: the inputs of row r are order[rows[r]:rows[r + 1]].
        lengths: int64 [R], tokens of each row, including special tokens.
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
        """Number of inputs N."""
        return len(self.middles)

    @property
    def pairs(self) -> int:
        """Number of inputs with two segments."""
        return int(np.count_nonzero(self.middles))

    def of_row(self, row: int) -> list[int]:
        """Return the inputs of a row."""
        inputs: list[int] = self.order[self.rows[row] : self.rows[row + 1]].tolist()
        return inputs


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """How texts are split and packed into rows.

    Attributes:
        max_length: maximum tokens of an input, including special tokens.
        row_tokens: maximum tokens of a row; at least `max_length` is used.
        pairs: whether rows of the file are documents whose segments form pairs.
    """

    max_length: int
    row_tokens: int
    pairs: bool


def corpus(source: Source, tokenizer: str, options: PackingOptions, progress: Progress) -> Corpus:
    """Open the token cache of a data file; build it first if it does not exist.

    Memory use is constant except for 8 bytes per input. An interrupted build starts again from the
    beginning. `tokenizer` is JSON.

    Raises:
        DataError: as `Source.rows`, and if the file contains no text or the disk is full.
    """
    parts = ("corpus", version("tokenizers"), tokenizer, options)
    name = cache_key((*parts, source_content(source)))
    loaded = Tokenizer.from_str(tokenizer)
    special_tokens = SpecialTokens.of(loaded)
    with cache_entry(name, CACHE_RATIO * source.path.stat().st_size) as folder:
        if not (folder / COMPLETE).is_file():
            encoder = TextEncoder(loaded, max_length=options.max_length, type_ids=False)
            pieces = _split(source, encoder, special_tokens, options)
            _write(folder, source, pieces, unspaced_ids(loaded), progress)
            _pack(folder, special_tokens, options)
            write_atomically(folder / COMPLETE, b"")
        return _open(folder, special_tokens)


def _split(
    source: Source, encoder: TextEncoder, special_tokens: SpecialTokens, options: PackingOptions
) -> Iterator[PretrainInput]:
    """Yield the inputs of a file; the random splits are the same every time."""
    room = options.max_length - (
        special_tokens.pair_count if options.pairs else special_tokens.single_count
    )
    if room < (2 if options.pairs else 1):
        message = f"model.max_length {options.max_length} leaves no room for text"
        raise ConfigError(message, "increase model.max_length")
    random = np.random.default_rng(0)
    for chunk in chunks(source.rows(), CHUNK):
        if options.pairs:
            yield from cut_documents([row.text for row in chunk], encoder, room, random)
        else:
            yield from cut_texts([row.text for row in chunk], encoder, room)


def _write(
    folder: Path,
    source: Source,
    pieces: Iterator[PretrainInput],
    unspaced_V: NDArray[np.bool_],
    progress: Progress,
) -> None:
    end, rest = 0, source.path.stat().st_size
    with progress.stage(f"tokenize {source.path.name}", rest, "bytes"):
        with write_streams(folder, ("ids", "units", "offsets", "middles")) as streams:
            write_array(streams["offsets"], np.zeros(1, np.int64))
            while batch := list(islice(pieces, PACKED)):
                write_array(streams["ids"], np.concatenate([piece.ids for piece in batch]))
                units = [_units(piece, unspaced_V) for piece in batch]
                write_array(streams["units"], np.concatenate(units))
                offsets = end + np.cumsum([len(piece.ids) for piece in batch], dtype=np.int64)
                write_array(streams["offsets"], offsets)
                middles = np.array([piece.middle for piece in batch], np.int32)
                write_array(streams["middles"], middles)
                end = int(offsets[-1])
                progress.advance(read := sum(piece.size for piece in batch))
                rest -= read
        if end == 0:
            message = f"{source.path} contains no text"
            raise DataError(message, "check the file and data.columns.text")
        progress.advance(max(0, rest))  # columns that were not read


def _units(piece: PretrainInput, unspaced_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which tokens start a unit that is masked as a whole."""
    unspaced_T = unspaced_V[piece.ids]
    starts_T = np.ones(len(piece.ids), bool)
    starts_T[1:] = (piece.words[1:] != piece.words[:-1]) | unspaced_T[1:] | unspaced_T[:-1]
    return starts_T


def _pack(folder: Path, special_tokens: SpecialTokens, options: PackingOptions) -> None:
    """Pack inputs into rows, PACKED at a time so that sorting is fast."""
    lengths_N = _lengths(_array(folder, "offsets"), _array(folder, "middles"), special_tokens)
    max_tokens = max(options.row_tokens, options.max_length)
    end = 0
    with write_streams(folder, ("order", "rows")) as streams:
        write_array(streams["rows"], np.zeros(1, np.int64))
        for start in range(0, len(lengths_N), PACKED):
            rows = best_fit_bins(lengths_N[start : start + PACKED].tolist(), max_tokens)
            order = [index + start for row in rows for index in row]
            write_array(streams["order"], np.array(order, np.int64))
            ends = end + np.cumsum([len(row) for row in rows], dtype=np.int64)
            write_array(streams["rows"], ends)
            end = int(ends[-1])


def _lengths(
    offsets: NDArray[np.int64], middles: NDArray[np.int32], special_tokens: SpecialTokens
) -> NDArray[np.int64]:
    """Return the number of tokens of each input, including special tokens, int64 [N]."""
    return np.diff(offsets) + np.where(
        middles > 0, special_tokens.pair_count, special_tokens.single_count
    )


def _open(folder: Path, special_tokens: SpecialTokens) -> Corpus:
    arrays = {name: _array(folder, name) for name in FILES}
    lengths_N = _lengths(arrays["offsets"], arrays["middles"], special_tokens)
    lengths_R = np.add.reduceat(lengths_N[arrays["order"]], arrays["rows"][:-1])
    return Corpus(**arrays, lengths=lengths_R)


def _array(folder: Path, name: str) -> NDArray[Any]:
    return np.memmap(folder / name, FILES[name], mode="r")
