"""Selection of the masked tokens of a row, and their replacements.

Shapes: T tokens of a row, U units, V ids of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipework.train.config.train import PretrainSettings

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
