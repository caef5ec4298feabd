"""Batches for pretraining: packed rows with masked tokens and swapped pairs.

Shapes: R rows, T tokens of a row, N pairs, M masked tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.text.padding import Padding
from pipework.text.special_tokens import SpecialTokens
from pipework.train.data.batches import Rows
from pipework.train.loop.model_inputs import Inputs, arrays_to_device
from pipework.train.pretrain.corpus import Corpus
from pipework.train.pretrain.masking import NO_TARGET, Masker

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """A row before padding; `pairs` has the position of the first token of each pair."""

    input_T: Ids
    targets_T: Ids
    types_T: Ids
    lengths: Sequence[int]
    pairs: Sequence[int]
    swapped: Sequence[int]


class PackedLoader:
    """Loads batches of a corpus.

    Masked tokens and swapped pairs of a row depend only on the seed, the epoch and the row. So a
    resumed run has the same batches, with any number of processes.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        special_tokens: SpecialTokens,
        masker: Masker,
        padding: Padding,
        seed: int,
        device: torch.device,
    ) -> None:
        """Read rows from a token cache."""
        self._corpus = corpus
        self._special_tokens = special_tokens
        self._masker = masker
        self._padding = padding
        self._seed = seed
        self._device = device
        self.lengths = corpus.lengths

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return what `Pretrainer` takes, for rows as numbered `Windows` count them."""
        rows = [self._row(*divmod(int(row), len(self._corpus))) for row in rows_B]
        width = max(len(row.input_T) for row in rows)
        targets_RT = _stack([row.targets_T for row in rows], width, NO_TARGET)
        places_M = np.flatnonzero(targets_RT != NO_TARGET)
        positions = [_positions(row.lengths) for row in rows]
        segments = [np.repeat(np.arange(len(row.lengths)), row.lengths) for row in rows]
        arrays = {
            "input_ids": _stack([row.input_T for row in rows], width, self._padding.pad_id),
            "position_ids": _stack(positions, width, 0),
            "segment_ids": _stack(segments, width, -1),
            "places": places_M,
            "targets": targets_RT.ravel()[places_M],
            "pairs": _flat(
                [[start + number * width for start in row.pairs] for number, row in enumerate(rows)]
            ),
            "swapped": _flat([row.swapped for row in rows]),
        }
        if self._padding.type_ids:
            types = [row.types_T for row in rows]
            arrays["token_type_ids"] = _stack(types, width, self._padding.pad_type_id)
        return arrays_to_device(arrays, self._device)

    def _row(self, epoch: int, row: int) -> _Row:
        random = np.random.default_rng((self._seed, epoch, row))
        ids, units, types, pairs, swapped = [], [], [], [], []
        start = 0
        for index in self._corpus.of_row(row):
            texts, begins = self._texts(index)
            if len(texts) > 1:
                swapped.append(int(random.integers(2)))
                pairs.append(start)
                if swapped[-1]:
                    texts.reverse()
                    begins.reverse()
            ids.append(self._special_tokens.ids(texts))
            units.append(self._special_tokens.units(begins))
            types.append(self._special_tokens.type_ids(texts))
            start += len(ids[-1])
        input_T, targets_T = self._masker.mask(np.concatenate(ids), np.concatenate(units), random)
        return _Row(
            input_T=input_T,
            targets_T=targets_T,
            types_T=np.concatenate(types),
            lengths=[len(ids_T) for ids_T in ids],
            pairs=pairs,
            swapped=swapped,
        )

    def _texts(self, index: int) -> tuple[list[Ids], list[NDArray[np.bool_]]]:
        """Return the ids of the one or two segments of an input, and which tokens start units."""
        corpus, middle = self._corpus, int(self._corpus.middles[index])
        span = slice(int(corpus.offsets[index]), int(corpus.offsets[index + 1]))
        ids_T, begins_T = corpus.ids[span].astype(np.int64), np.array(corpus.units[span])
        if not middle:
            return [ids_T], [begins_T]
        begins_T[middle] = True
        return [ids_T[:middle], ids_T[middle:]], [begins_T[:middle], begins_T[middle:]]


def _stack(rows: Sequence[NDArray[np.signedinteger]], width: int, rest: int) -> Ids:
    """Return int64 [R, T], each row padded at the end."""
    stacked_RT = np.full((len(rows), width), rest, np.int64)
    for number, row_T in enumerate(rows):
        stacked_RT[number, : len(row_T)] = row_T
    return stacked_RT


def _positions(lengths: Sequence[int]) -> Ids:
    """Return the positions of the tokens of each text, from 0."""
    return np.concatenate([np.arange(length) for length in lengths])


def _flat(lists: Sequence[Sequence[int]]) -> Ids:
    return np.array([number for numbers in lists for number in numbers], np.int64)
