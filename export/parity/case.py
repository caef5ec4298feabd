"""Batches that an engine is asked for, and single inputs of them.

Shapes: B inputs of a batch, C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.export.rows.edge_cases import Row

Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One input in one batch, and what both answered.

    Attributes:
        rows: the inputs of the batch.
        place: which of them it is, from 0.
        rule: what put the batch together, in words.
        whole: whether the batch was one call, whatever it cost.
        expected_C: the checkpoint's logits.
        found_C: the engine's; None where it gave an error.
    """

    rows: Sequence[Row]
    place: int
    rule: str
    whole: bool
    expected_C: Logits
    found_C: Logits | None

    @property
    def row(self) -> Row:
        """The input."""
        return self.rows[self.place]

    @property
    def apart(self) -> float:
        """The largest difference of a logit; infinite where there is no number."""
        if self.found_C is None or not np.isfinite(self.found_C).all():
            return float("inf")
        return float(np.abs(self.found_C - self.expected_C).max())


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A batch with what the checkpoint answers, [B, C]; `inputs` are numbers of its inputs."""

    rows: Sequence[Row]
    inputs: Sequence[int]
    rule: str
    whole: bool
    expected_BC: Logits

    def case(self, place: int, found_C: Logits | None) -> Case:
        """Return one of its inputs with the engine's answer."""
        return Case(
            rows=self.rows,
            place=place,
            rule=self.rule,
            whole=self.whole,
            expected_C=self.expected_BC[place],
            found_C=found_C,
        )


class EngineFailedError(CheckFailedError):
    """An engine gave an error in place of answers; `case` is what it was asked."""

    def __init__(self, message: str, case: Case) -> None:
        """Keep the case."""
        super().__init__(message)
        self.case = case


# An answer must depend on its input alone, so each input of the grid is asked for in batches that
# differ in their size, their order and their lengths.

SIZES = (1, 2, 7, 32)
SHUFFLED = 4
PROBES = 4
REPEATS = 3
SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Indices of the inputs of one batch, and the rule that put them together."""

    rule: str
    rows: tuple[int, ...]


def batches(lengths_N: Sequence[int]) -> list[Batch]:
    """Return the batches of N inputs, each of which is alone in one of them.

    The inputs in their order, by several sizes; in a shuffled order; and some of each length
    first and last among longer ones, first and last among shorter ones, and repeated.
    """
    inputs = range(len(lengths_N))
    shuffled = np.random.default_rng(SEED).permutation(len(lengths_N)).tolist()
    found = [batch for size in SIZES for batch in _cut(inputs, size, "in order")]
    found += _cut(shuffled, SHUFFLED, "shuffled")
    ranked = sorted(inputs, key=lengths_N.__getitem__)
    for place in sorted(set(np.linspace(0, len(ranked) - 1, PROBES).astype(int).tolist())):
        found += _around(ranked, place)
    return found


def _cut(rows: Sequence[int], size: int, order: str) -> Iterator[Batch]:
    rule = "alone" if size == 1 else f"by {size} {order}"
    for start in range(0, len(rows), size):
        yield Batch(rule=rule, rows=tuple(rows[start : start + size]))


def _around(ranked: Sequence[int], place: int) -> Iterator[Batch]:
    """Yield the batches of one input among longer and shorter ones; `ranked` is by length."""
    own = ranked[place]
    longer, shorter = ranked[place + 1 :], ranked[:place]
    for others, word in ((longer, "longer"), (shorter, "shorter")):
        if others:
            two = (others[0], others[-1])
            yield Batch(rule=f"first among {word}", rows=(own, *two))
            yield Batch(rule=f"last among {word}", rows=(*two, own))
    yield Batch(rule="repeated", rows=(own,) * REPEATS)
