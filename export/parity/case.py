"""Batches of a parity check and single inputs in them.

Shapes: N inputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.errors import CheckFailedError
from pipework.export.rows.edge_cases import Row
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task

SIZES = (1, 2, 7, 32)
SHUFFLED = 4
LENGTH_SAMPLES = 4
REPEATS = 3
SEED = 0


def largest_difference(found: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Return the largest difference of two arrays; infinite if a number is not finite."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        error = np.asarray(found, np.float64) - np.asarray(expected, np.float64)
    return float(np.nan_to_num(np.abs(error), nan=np.inf, posinf=np.inf).max())


def prediction_change(task: Task, expected: Outputs, found: Outputs) -> str:
    """Return the predictions of two outputs for an input, as `before -> after`."""
    with np.errstate(invalid="ignore", over="ignore"):  # a logit may be infinite
        labels = [
            task.decode(outputs)[0].text_fields()[0] or "no label" for outputs in (expected, found)
        ]
    return " -> ".join(labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One input in one batch, with the outputs of checkpoint and engine.

    Attributes:
        rows: the inputs of the batch.
        index: index of the input in the batch.
        rule: description of how the batch was composed.
        whole: whether the batch was run as one call, without splitting it.
        expected: the checkpoint's outputs for the input.
        found: the engine's outputs for the input; None if it raised an error.
    """

    rows: Sequence[Row]
    index: int
    rule: str
    whole: bool
    expected: Outputs
    found: Outputs | None

    @property
    def row(self) -> Row:
        """The input."""
        return self.rows[self.index]

    @property
    def max_diff(self) -> float:
        """The largest difference of a logit; infinite if a logit is not finite or missing."""
        if self.found is None:
            return float("inf")
        return largest_difference(self.found.values, self.expected.values)


@dataclass(frozen=True, kw_only=True, eq=False)
class ProofBatch:
    """A batch with the checkpoint's outputs.

    Attributes:
        rows: the inputs of the batch.
        inputs: the numbers of its inputs.
        rule: description of how it was composed.
        whole: whether it runs as one call, without splitting it.
        expected: the checkpoint's outputs.
        twice: whether it runs twice, with equal results.
    """

    rows: Sequence[Row]
    inputs: Sequence[int]
    rule: str
    whole: bool
    expected: Outputs
    twice: bool = False

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed, without padding."""
        tokens = sum(len(row.encoding) for row in self.rows)
        return tokens * 2 if self.twice else tokens

    def case(self, index: int, found: Outputs | None) -> Case:
        """Return the case of the input at `index`, with the engine's outputs for it."""
        return Case(
            rows=self.rows,
            index=index,
            rule=self.rule,
            whole=self.whole,
            expected=self.expected.part(index, index + 1),
            found=found,
        )


class EngineFailedError(CheckFailedError):
    """The engine raised an error for the batch of `case`."""

    def __init__(self, message: str, case: Case) -> None:
        super().__init__(message)
        self.case = case


# The logits must depend on the input alone, so each edge case is run in batches that differ in
# size, order and lengths.


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMix:
    """Indices of the inputs of one batch, and the rule that composed it."""

    rule: str
    rows: tuple[int, ...]


def batch_mixes(lengths_N: Sequence[int]) -> list[BatchMix]:
    """Return the batches in which N inputs are checked.

    The batches have the inputs in order, in several sizes from 1; in shuffled order; and inputs of
    several lengths first and last among longer inputs, first and last among shorter inputs, and
    repeated.
    """
    inputs = range(len(lengths_N))
    shuffled = np.random.default_rng(SEED).permutation(len(lengths_N)).tolist()
    mixes = [mix for size in SIZES for mix in _cut(inputs, size, "in order")]
    mixes += _cut(shuffled, SHUFFLED, "shuffled")
    by_length = sorted(inputs, key=lengths_N.__getitem__)
    for rank in sorted(
        set(np.linspace(0, len(by_length) - 1, LENGTH_SAMPLES).astype(int).tolist())
    ):
        mixes += _around(by_length, rank)
    return mixes


def _cut(rows: Sequence[int], size: int, order: str) -> Iterator[BatchMix]:
    rule = "alone" if size == 1 else f"by {size} {order}"
    for start in range(0, len(rows), size):
        yield BatchMix(rule=rule, rows=tuple(rows[start : start + size]))


def _around(by_length: Sequence[int], rank: int) -> Iterator[BatchMix]:
    """Yield batches with one input among longer and among shorter inputs."""
    own = by_length[rank]
    longer, shorter = by_length[rank + 1 :], by_length[:rank]
    for others, word in ((longer, "longer"), (shorter, "shorter")):
        if others:
            two = (others[0], others[-1])
            yield BatchMix(rule=f"first among {word}", rows=(own, *two))
            yield BatchMix(rule=f"last among {word}", rows=(*two, own))
    yield BatchMix(rule="repeated", rows=(own,) * REPEATS)
