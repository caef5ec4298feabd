"""Which tokens of a row are to be told, and what stands in their place.

Shapes: T tokens of a row, U units, V ids of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipework.train.config.train import PretrainSettings

HIDDEN, RANDOM = 0.8, 0.1  # of the chosen tokens; the rest stays as it is
NOT_TOLD = -1

Flags = NDArray[np.bool_]
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Masker:
    """Hides tokens as `PretrainSettings` says.

    Attributes:
        settings: rates and lengths.
        mask_id: what hides a token.
        ordinary: the ids that may be hidden, and drawn in the place of others, int64.
        unspaced_V: whether a token is of writing without spaces, bool [V].
    """

    settings: PretrainSettings
    mask_id: int
    ordinary: Ids
    unspaced_V: Flags

    def hide(self, ids_T: Ids, units_T: Flags, random: np.random.Generator) -> tuple[Ids, Ids]:
        """Return what the model sees, and what it is to tell.

        Args:
            ids_T: the tokens of a row, special ones included.
            units_T: whether a token begins something that is hidden whole; a special token does.
            random: decides.

        Returns:
            The ids with some replaced, and the true ids of the chosen ones, else NOT_TOLD; [T].
        """
        chosen_T = self.choose(ids_T, units_T, random)
        targets_T = np.where(chosen_T, ids_T, NOT_TOLD)
        draw_T = random.random(len(ids_T))
        seen_T = np.where(chosen_T & (draw_T < HIDDEN), self.mask_id, ids_T)
        other_T = chosen_T & (draw_T >= HIDDEN) & (draw_T < HIDDEN + RANDOM)
        seen_T[other_T] = random.choice(self.ordinary, int(other_T.sum()))
        return seen_T, targets_T

    def choose(self, ids_T: Ids, units_T: Flags, random: np.random.Generator) -> Flags:
        """Return which tokens of a row are to be told.

        Runs of units are taken in an order by chance, until the row has its share of tokens; one
        that would exceed it is made shorter or left out, unless there is none yet.
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
        # Units of one kind that follow one another have one number: no run goes over its end.
        kind_U = np.cumsum(np.diff(free_U * (1 + unspaced_U), prepend=0) != 0)
        chosen_T, left = np.zeros(len(ids_T), bool), budget
        for first, run in zip(order.tolist(), runs.tolist(), strict=True):
            if left <= 0:
                break
            start, end = int(firsts_U[first]), int(ends_U[first])
            if chosen_T[start] or (end - start > left and left < budget):
                continue
            for unit in range(first + 1, min(first + run, len(ends_U))):
                longer = int(ends_U[unit])
                same = kind_U[unit] == kind_U[first] and not chosen_T[longer - 1]
                if not same or longer - start > left:
                    break
                end = longer
            chosen_T[start:end] = True
            left -= end - start
        return chosen_T

    @cached_property
    def _free(self) -> Flags:
        free_V = np.zeros(len(self.unspaced_V), bool)
        free_V[self.ordinary] = True
        return free_V


def draw_lengths(
    weights: Sequence[float], count: int, random: np.random.Generator
) -> NDArray[np.intp]:
    """Draw lengths of runs, 1 and up, by their weights."""
    shares = np.cumsum(weights) / np.sum(weights)
    return 1 + np.searchsorted(shares, random.random(count), side="right")
