"""The outputs of a model: any number of rows for each input.

Shapes: N inputs, R rows of all inputs, C logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
Indices = NDArray[np.int64]
RowOffsets = Callable[[Sequence[int]], Indices]  # the offsets of inputs of these lengths
Places = NDArray[np.int32]  # the characters [start, end) of tokens, [T, 2]
NO_PLACE = -1  # start of a special token
# Most batches are small: their offsets are views of this array.
COUNTS = np.arange(4097)
COUNTS.flags.writeable = False


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """The logits of N inputs; the rows of input i are values[offsets[i]:offsets[i + 1]].

    A classifier has one row for each input, so R = N; see `Outputs.of`.

    Attributes:
        values: float32 [R, C].
        offsets: int64 [N + 1].
    """

    values: Values
    offsets: Indices

    @classmethod
    def of(cls, values: Values) -> "Outputs":
        """Return outputs with one row for each input."""
        return cls(values, one_row_each(len(values)))

    @classmethod
    def concatenate(cls, parts: Sequence["Outputs"]) -> "Outputs":
        """Return the outputs of all inputs of one or more parts, in order."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values for part in parts])
        if all(part.one_each for part in parts):
            return cls.of(values)
        return cls(values, offsets_of(np.concatenate([part.counts for part in parts])))

    def __len__(self) -> int:
        """Number of inputs."""
        return len(self.offsets) - 1

    @property
    def one_each(self) -> bool:
        """Whether each input has one row."""
        known = self.offsets.base is COUNTS
        return known or (len(self) == len(self.values) and bool((self.counts == 1).all()))

    @property
    def counts(self) -> Indices:
        """The number of rows of each input, [N]."""
        return np.diff(self.offsets)

    @property
    def inputs(self) -> Indices:
        """The input of each row, [R]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def part(self, start: int, stop: int) -> "Outputs":
        """Return the outputs of the inputs [start, stop)."""
        if self.one_each:
            return Outputs.of(self.values[start:stop])
        first = self.offsets[start]
        offsets = self.offsets[start : stop + 1] - first
        return Outputs(self.values[first : self.offsets[stop]], offsets)

    def take(self, inputs: Sequence[int] | NDArray[np.integer]) -> "Outputs":
        """Return the outputs of these inputs, in this order."""
        chosen = np.asarray(inputs, np.int64)
        if self.one_each:
            return Outputs.of(self.values[chosen])
        return Outputs(self.values[rows_of(self.offsets, chosen)], offsets_of(self.counts[chosen]))

    def grouped(self, offsets: Indices) -> "Outputs":
        """Return outputs whose input i has the rows of the inputs offsets[i] to offsets[i + 1]."""
        return Outputs(self.values, self.offsets[offsets])

    def finite(self) -> "Outputs":
        """Return the outputs with 0 for NaN, and large numbers for infinity."""
        return Outputs(np.nan_to_num(self.values), self.offsets)

    def max_per_input(self, values_R: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest value of the rows of each input, [N]; -inf without rows."""
        if self.one_each:
            return values_R
        largest_N = np.full(len(self), -np.inf)
        np.maximum.at(largest_N, self.inputs, values_R)
        return largest_N


@dataclass(frozen=True, slots=True, eq=False)
class LocatedOutputs(Outputs):
    """Outputs with a row for each token, and the places of the tokens in the texts.

    Attributes:
        places: int32 [R, 2].
        texts: the N texts.
    """

    places: Places
    texts: Sequence[str]


def one_row_of(lengths_N: Sequence[int]) -> Indices:
    """Return the offsets of inputs of these lengths with one row each."""
    return one_row_each(len(lengths_N))


def one_row_each(inputs: int) -> Indices:
    """Return the offsets of inputs with one row each."""
    return COUNTS[: inputs + 1] if inputs < len(COUNTS) else np.arange(inputs + 1)


def offsets_of(counts_N: NDArray[np.integer]) -> Indices:
    """Return the offsets of inputs with these numbers of rows."""
    return np.concatenate(([0], np.cumsum(counts_N))).astype(np.int64)


def rows_of(offsets: Indices, inputs: Sequence[int] | Indices) -> Indices:
    """Return the rows of inputs, in the order of the inputs."""
    chosen = np.asarray(inputs, np.int64)
    if offsets.base is COUNTS:  # one row each
        return chosen
    starts: Indices = offsets[chosen]
    counts = offsets[chosen + 1] - starts
    if (counts == 1).all():
        return starts
    # Each row is the start of its input plus its position among the rows of the input.
    ends = np.cumsum(counts)
    return np.asarray(np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts))
