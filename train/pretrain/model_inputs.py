"""Batches for pretraining: packed rows with masked tokens and swapped pairs.

Shapes: R rows, T tokens of a row, N pairs, M masked tokens, U units, V ids of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from pipework.text.padding import Padding
from pipework.text.special_tokens import SpecialTokens
from pipework.train.config.train import PretrainSettings
from pipework.train.data.batches import Rows
from pipework.train.loop.model_inputs import Inputs, arrays_to_device
from pipework.train.pretrain.corpus import Corpus

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the chosen tokens; the rest is unchanged
NO_TARGET = -1

Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Masker:
    """Masks tokens according to `PretrainSettings`.

    Attributes:
        settings: rates and lengths.
        mask_id: the id of the mask token.
        ordinary: the ids that may be masked, or drawn as random replacements, int64.
        unspaced_V: whether a token is in a script without spaces, bool [V].
    """

    settings: PretrainSettings
    mask_id: int
    ordinary: Ids
    unspaced_V: Flags

    def mask(self, ids_T: Ids, units_T: Flags, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Return the input ids and the target ids of a row.

        Args:
            ids_T: the tokens of a row, including special tokens.
            units_T: whether a token starts a unit, which is masked as a whole; special tokens do.
            random: the generator.

        Returns:
            The ids with some replaced, and the true ids of the masked tokens, else NO_TARGET; [T].
        """
        chosen_T = self.choose(ids_T, units_T, random)
        targets_T = np.where(chosen_T, ids_T, NO_TARGET)
        draw_T = random.random(len(ids_T))
        input_T = np.where(chosen_T & (draw_T < MASK_SHARE), self.mask_id, ids_T)
        other_T = chosen_T & (draw_T >= MASK_SHARE) & (draw_T < MASK_SHARE + RANDOM_SHARE)
        input_T[other_T] = random.choice(self.ordinary, int(other_T.sum()))
        return input_T, targets_T

    def choose(self, ids_T: Ids, units_T: Flags, random: np.random.Generator) -> Flags:
        """Return which tokens of a row are masked, bool [T].

        Spans of units are chosen in random order until the share of tokens is reached. A span that
        would exceed the share is shortened or skipped, unless it is the first.
        """
        firsts_U = np.flatnonzero(units_T)
        ends_U = np.append(firsts_U[1:], len(ids_T))
        free_T = self._free[ids_T]
        free_U = np.logical_and.reduceat(free_T, firsts_U)
        unspaced_U = self.unspaced_V[ids_T[firsts_U]]
        budget = max(1, round(self.settings.mask_rate * int(free_T.sum())))
        order = random.permutation(np.flatnonzero(free_U))
        runs = np.where(
            unspaced_U[order],
            draw_lengths(self.settings.characters, len(order), random),
            draw_lengths(self.settings.words, len(order), random),
        )
        # Adjacent units of the same kind have the same number; a span does not cross kinds.
        kind_U = np.cumsum(np.diff(free_U * (1 + unspaced_U), prepend=0) != 0)
        chosen_T, remaining = np.zeros(len(ids_T), bool), budget
        for first, run in zip(order.tolist(), runs.tolist(), strict=True):
            if remaining <= 0:
                break
            start, end = int(firsts_U[first]), int(ends_U[first])
            if chosen_T[start] or (end - start > remaining and remaining < budget):
                continue
            for unit in range(first + 1, min(first + run, len(ends_U))):
                extended = int(ends_U[unit])
                same_kind = kind_U[unit] == kind_U[first] and not chosen_T[extended - 1]
                if not same_kind or extended - start > remaining:
                    break
                end = extended
            chosen_T[start:end] = True
            remaining -= end - start
        return chosen_T

    @cached_property
    def _free(self) -> Flags:
        free_V = np.zeros(len(self.unspaced_V), bool)
        free_V[self.ordinary] = True
        return free_V


def draw_lengths(
    weights: Sequence[float], count: int, random: np.random.Generator
) -> NDArray[np.intp]:
    """Draw span lengths, from 1, with the given weights."""
    shares = np.cumsum(weights) / np.sum(weights)
    return 1 + np.searchsorted(shares, random.random(count), side="right")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """A row before padding; `pairs` has the position of the first token of each pair."""

    input_T: Ids
    targets_T: Ids
    types_T: Ids
    lengths: Sequence[int]
    pairs: Sequence[int]
    swapped: Sequence[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedLoader:
    """Loads batches of a corpus.

    Masked tokens and swapped pairs of a row depend only on the seed, the epoch and the row. So a
    resumed run has the same batches, with any number of processes.
    """

    corpus: Corpus
    special_tokens: SpecialTokens
    masker: Masker
    padding: Padding
    seed: int
    device: torch.device

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, int64 [R]."""
        return self.corpus.lengths

    def inputs(self, rows_B: Rows) -> Inputs:
        """Return what `Pretrainer` takes, for rows as numbered `Windows` count them."""
        rows = [self._row(*divmod(int(row), len(self.corpus))) for row in rows_B]
        width = max(len(row.input_T) for row in rows)
        targets_RT = _stack([row.targets_T for row in rows], width, NO_TARGET)
        places_M = np.flatnonzero(targets_RT != NO_TARGET)
        positions = [_positions(row.lengths) for row in rows]
        segments = [np.repeat(np.arange(len(row.lengths)), row.lengths) for row in rows]
        arrays = {
            "input_ids": _stack([row.input_T for row in rows], width, self.padding.pad_id),
            "position_ids": _stack(positions, width, 0),
            "segment_ids": _stack(segments, width, -1),
            "places": places_M,
            "targets": targets_RT.ravel()[places_M],
            "pairs": _flat(
                [[start + number * width for start in row.pairs] for number, row in enumerate(rows)]
            ),
            "swapped": _flat([row.swapped for row in rows]),
        }
        if self.padding.type_ids:
            types = [row.types_T for row in rows]
            arrays["token_type_ids"] = _stack(types, width, self.padding.pad_type_id)
        return arrays_to_device(arrays, self.device)

    def _row(self, epoch: int, row: int) -> _Row:
        random = np.random.default_rng((self.seed, epoch, row))
        ids, units, types, pairs, swapped = [], [], [], [], []
        start = 0
        for index in self.corpus.of_row(row):
            texts, begins = self._texts(index)
            if len(texts) > 1:
                swapped.append(int(random.integers(2)))
                pairs.append(start)
                if swapped[-1]:
                    texts.reverse()
                    begins.reverse()
            ids.append(self.special_tokens.ids(texts))
            units.append(self.special_tokens.units(begins))
            types.append(self.special_tokens.type_ids(texts))
            start += len(ids[-1])
        input_T, targets_T = self.masker.mask(np.concatenate(ids), np.concatenate(units), random)
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
        corpus, middle = self.corpus, int(self.corpus.middles[index])
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
