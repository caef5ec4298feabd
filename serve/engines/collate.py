"""Cuts a batch into engine calls: padded micro-batches of similar lengths, or packed texts.

A call has a fixed cost: small on a CPU, as for thousands of tokens on a GPU. Padding inputs into
one call pays only if it costs less than a second call. The cost of calls is measured on this
machine when an engine is loaded.

Shapes: N inputs of a batch.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from pipework.run_folder.engine_record import Layout
from pipework.tasks.outputs import RowOffsets, one_row_of
from pipework.text.encoding import Encoding
from pipework.text.packing import (
    LENGTHS,
    OFFSET,
    Bucket,
    concatenate,
    even_bins,
    even_rows,
    full_bins,
    pack,
)
from pipework.text.padding import Padding, pad

WIDTH = 64  # tokens; up to this width the quadratic cost of attention is small
TOKENS = (16, WIDTH, 512)  # sizes of the timed calls
REPEATS = 3
SLOW_S = 0.3  # a call that takes longer is timed once, and no larger call is tried
# Larger calls are tried while the fixed cost is more than this share of the call's tokens.
FIXED_SHARE = 0.12
LARGEST = 16_384
ROW_TOKENS = 256  # most tokens of a packed row: the cost of attention is quadratic
# Factor by which packed calls may exceed `most_tokens`, so that a batch slightly larger than a
# call is not split: that takes 4 % longer (CPU, int8 MiniLM, batches of 1,020 tokens on average).
PACKED_SLACK = 1.25


# The inputs of graphs by layout, without those that all have, type ids and entity spans.
INPUTS = {
    Layout.PADDED: ("attention_mask",),
    Layout.PACKED: ("position_ids", "segment_ids", "text_index"),
    Layout.VARLEN: ("position_ids", "text_index", LENGTHS, OFFSET),
}


def layout_of(names: Collection[str]) -> Layout:
    """Return the layout of a graph with inputs of these names."""
    return next(layout for layout, inputs in INPUTS.items() if {*inputs} <= {*names})


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Costs by which batches are cut into calls.

    Attributes:
        call_tokens: fixed cost of a call, in tokens.
        most_tokens: most tokens of a call, including padding; packed calls may be a little larger.
    """

    call_tokens: int
    most_tokens: int


# For engines without measured costs.
CPU = Costs(call_tokens=16, most_tokens=1024)
GPU = Costs(call_tokens=1024, most_tokens=16_384)


def measure(call: Callable[[int, int], object], longest: int) -> Costs:
    """Measure calls of several shapes.

    Args:
        call: makes a call with a number of rows and a width.
        longest: the most tokens of an input.

    Returns:
        The fixed cost, from a least-squares fit of relative errors to a constant plus a cost per
        token, and the call size at which doubling it gives little or no speed-up.
    """
    shapes = sorted({_shape(tokens, longest) for tokens in TOKENS})
    times_s = np.array(_fastest_s(call, shapes))
    tokens = np.array([rows * width for rows, width in shapes])
    parts = np.stack([np.ones(len(tokens)), tokens], axis=1) / times_s[:, None]
    (constant_s, token_s), *_ = np.linalg.lstsq(parts, np.ones(len(tokens)), rcond=None)
    call_tokens = constant_s / token_s if token_s > 0 else LARGEST
    most, slowest_s = TOKENS[-1], times_s.max()
    while most < LARGEST and call_tokens > FIXED_SHARE * most and slowest_s <= SLOW_S:
        once, twice = (_shape(size, longest) for size in (most, 2 * most))
        once_s, slowest_s = _fastest_s(call, (once, twice))
        if slowest_s / prod(twice) >= once_s / prod(once):
            break
        most *= 2
    return Costs(call_tokens=max(0, round(float(call_tokens))), most_tokens=most)


def _shape(tokens: int, longest: int) -> tuple[int, int]:
    """Return the rows and width of a call with about this number of tokens."""
    width = min(tokens, WIDTH, longest)
    return tokens // width, width


def _fastest_s(
    call: Callable[[int, int], object], shapes: Sequence[tuple[int, int]]
) -> list[float]:
    """Return the fastest time of each shape, alternating between two or more shapes.

    In a server nearly every call has another shape than the last, and runtimes do some work for
    each change. Work that they do once per shape is not counted.
    """
    for shape in shapes:
        call(*shape)
    times_s: list[list[float]] = [[] for _ in shapes]
    for _ in range(REPEATS):
        for shape, shape_times_s in zip(shapes, times_s, strict=True):
            if not shape_times_s or shape_times_s[-1] <= SLOW_S:
                start_s = perf_counter()
                call(*shape)
                shape_times_s.append(perf_counter() - start_s)
    return [min(shape_times_s) for shape_times_s in times_s]


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFeed:
    """The arrays of one call, and the input indices in the order of its logits."""

    rows: Sequence[int]
    arrays: dict[str, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Collate:
    """Cuts batches into calls and builds the arrays of the graph.

    Attributes:
        layout: padded, packed or varlen.
        padding: padding token, and whether there are type ids.
        spans: whether the graph takes the spans of two entities.
        first_only: whether a packed graph reads the state of the first token only.
        whole: whether each batch is one call regardless of cost, for a parity check over fixed
            shapes.
        row_tokens: most tokens of a packed row before padding; a longer input gets its own row.
        row_step: widths of packed rows are multiples of this.
        costs: costs by which calls are cut.
        row_offsets: the offsets of the output rows of inputs, given their lengths; see `Outputs`.
        longest: most tokens of an input; 0 if unknown.
        buckets: fixed sizes of varlen calls, the smallest first; other calls have their own size.
    """

    layout: Layout
    padding: Padding
    spans: bool
    first_only: bool = True
    whole: bool = False
    row_tokens: int = ROW_TOKENS
    row_step: int = 1
    costs: Costs = CPU
    row_offsets: RowOffsets = one_row_of
    longest: int = 0
    buckets: tuple[Bucket, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names of the graph's input arrays."""
        names = {"input_ids", *INPUTS[self.layout]}
        names |= {"token_type_ids"} if self.padding.type_ids else set()
        return names | ({"entity_spans"} if self.spans else set())

    def feeds(self, encodings: Sequence[Encoding]) -> Iterator[InputFeed]:
        """Yield the calls for a batch; every input is in exactly one."""
        if not encodings:
            return
        for rows in self._calls([len(encoding) for encoding in encodings]):
            call = [encodings[row] for row in rows]
            arrays = self._arrays(call)
            # Texts with entities have spans, but a graph that reads only the marks takes none.
            yield InputFeed(rows=rows, arrays={name: arrays[name] for name in sorted(self.names)})

    def _calls(self, lengths_N: Sequence[int]) -> list[list[int]]:
        if self.whole:
            return [[*range(len(lengths_N))]]
        if self.layout is Layout.PADDED:
            return plan(lengths_N, self.costs)
        if self.buckets:
            return full_bins(lengths_N, self.buckets[-1].tokens)
        return even_bins(lengths_N, round(PACKED_SLACK * self.costs.most_tokens))

    def _arrays(self, encodings: Sequence[Encoding]) -> dict[str, NDArray[np.int64]]:
        match self.layout:
            case Layout.PADDED:
                return pad(encodings, self.padding)
            case Layout.PACKED:
                rows = even_rows([*map(len, encodings)], self.row_tokens, self.row_step)
                first, step = self.first_only, self.row_step
                return pack(encodings, rows, self.padding, first_only=first, step=step)
            case Layout.VARLEN:
                lengths, first = [*map(len, encodings)], self.first_only
                bucket = next((one for one in self.buckets if one.holds(lengths)), None)
                return concatenate(encodings, self.padding, first_only=first, bucket=bucket)


def plan(lengths_N: Sequence[int], costs: Costs) -> list[list[int]]:
    """Cut a batch into micro-batches of similar lengths.

    Args:
        lengths_N: number of tokens of each input.
        costs: costs of calls. An input longer than `most_tokens` gets its own micro-batch.

    Returns:
        Indices of the inputs of each micro-batch, shortest first; every input occurs once.
    """
    batches: list[list[int]] = []
    tokens = 0  # without padding, of the last micro-batch
    for index in sorted(range(len(lengths_N)), key=lengths_N.__getitem__):
        length = lengths_N[index]
        padded = length * (len(batches[-1]) + 1) if batches else 0
        fits = padded <= costs.most_tokens and padded - tokens - length <= costs.call_tokens
        if batches and fits:
            batches[-1].append(index)
            tokens += length
        else:
            batches.append([index])
            tokens = length
    return batches
