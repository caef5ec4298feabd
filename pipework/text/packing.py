"""Pack several inputs into one row, for engines with packed and varlen graphs.

Positions restart at 0 for each input, attention is limited to tokens of the same segment, and the
states of each input are gathered by index. Rows contain little padding for any mix of lengths.

Shapes: R rows, T tokens of a row, N inputs, L tokens of the longest input.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import inf

import numpy as np
from numpy.typing import NDArray

from pipework.text.encoding import Encoding
from pipework.text.padding import Padding

OFFSET, LENGTHS = "token_offset", "cumulative_lengths"  # inputs of varlen graphs only
# Row width at which attention costs as much as all other operations. Measured with 384 hidden
# units on two EPYC cores: the best value is 500 for int8 with float32 attention, 1000 for bf16.
ATTENTION_TOKENS = 1000


def best_fit_bins(lengths_N: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute inputs over few bins of at most `capacity` tokens, the longest input first.

    A longer input has its own bin. Best-fit decreasing: each input goes to the bin where it leaves
    the least room, which needs at most 11/9 of the optimal number of bins, plus 4 (Johnson et al.
    1974, https://doi.org/10.1137/0203025). O(N log N), except for insertions into a sorted list.
    """
    filled: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left in a bin, index of the bin), sorted
    for index in _longest_first(lengths_N):
        length = lengths_N[index]
        fitting = bisect_left(room, (length, 0))
        if fitting < len(room):
            left, number = room.pop(fitting)
        else:
            left, number = max(capacity, length), len(filled)
            filled.append([])
        filled[number].append(index)
        insort(room, (left - length, number))
    return filled


def even_bins(lengths_N: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute inputs over bins of similar size, at most `capacity` tokens, sorted by length.

    A longer input has its own bin.
    """
    # Even bins avoid a nearly empty last bin; sorting avoids wide rows for short inputs.
    order, tokens = _longest_first(lengths_N), sum(lengths_N)
    count = -(-tokens // capacity)
    while len(filled := _cut(lengths_N, order, capacity, target=tokens / max(1, count))) > count:
        count = len(filled)
    return filled


def full_bins(lengths_N: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute inputs over bins of up to `capacity` tokens, sorted by length.

    All but the last are as full as possible. A longer input has its own bin.
    """
    return _cut(lengths_N, _longest_first(lengths_N), capacity, target=inf)


def _cut(
    lengths_N: Sequence[int], order: Sequence[int], capacity: int, target: float
) -> list[list[int]]:
    filled: list[list[int]] = []
    size = inf
    for index in order:
        if size >= target or size + lengths_N[index] > capacity:
            filled.append([])
            size = 0
        filled[-1].append(index)
        size += lengths_N[index]
    return filled


def even_rows(lengths_N: Sequence[int], row_tokens: int, step: int = 1) -> list[list[int]]:
    """Distribute N >= 1 inputs over rows of similar width; the number of rows minimises the cost.

    Each token attends to its whole row, so that more and narrower rows cost less, until their
    padding outweighs this. The longest input goes first, each to the emptiest row (longest
    processing time, Graham 1969, https://doi.org/10.1137/0117039).

    Args:
        lengths_N: tokens of each input.
        row_tokens: see `max_row_width`.
        step: see `pack`.
    """
    order = _longest_first(lengths_N)
    tokens, longest = sum(lengths_N), lengths_N[order[0]]
    widest = max_row_width(longest, row_tokens)
    best: list[list[int]] = []
    least = inf
    for count in range(-(-tokens // widest), len(order) + 1):
        at_least = max(longest, -(-tokens // count))
        if _cost(count, round_up(at_least, step)) < least:
            rows, width = _spread(lengths_N, order, count)
            cost = _cost(count, round_up(width, step))
            if width <= widest and cost < least:
                best, least = rows, cost
        elif at_least == longest:
            break
    return best


def max_row_width(longest: int, row_tokens: int) -> int:
    """Return the maximum width of a row: `row_tokens`, or less if all inputs are short.

    Rows, before rounding up, are at most twice as wide as the longest input.
    """
    # Engines built for several ranges of shapes can then use narrow shapes for short inputs.
    return max(longest, min(row_tokens, 2 * longest))


def round_up(width: int, step: int) -> int:
    """Round a row width up to a multiple of `step`."""
    return -(-width // step) * step


def _longest_first(lengths_N: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths_N)), key=lengths_N.__getitem__, reverse=True)


def _cost(rows: int, width: int) -> float:
    return rows * width * (1 + width / ATTENTION_TOKENS)


def _spread(
    lengths_N: Sequence[int], order: Sequence[int], count: int
) -> tuple[list[list[int]], int]:
    """Return rows and the width of the widest row."""
    rows: list[list[int]] = [[] for _ in range(count)]
    widths = [(0, row) for row in range(count)]  # a heap
    for index in order:
        width, row = widths[0]
        rows[row].append(index)
        heapreplace(widths, (width + lengths_N[index], row))
    return rows, max(widths)[0]


def pack(
    encodings: Sequence[Encoding],
    rows: Sequence[Sequence[int]],
    padding: Padding,
    *,
    first_only: bool,
    step: int = 1,
) -> dict[str, NDArray[np.int64]]:
    """Pack N >= 1 encodings into R >= 1 rows, distributed as by `even_rows`.

    Returns:
        The arrays by the input names of packed graphs, int64. T is a multiple of `step`.

        input_ids [R, T]: padding ids after the last input of a row.
        position_ids [R, T]: from 0 in each input, 0 in the padding.
        segment_ids [R, T]: the index of the input in its row, -1 in the padding.
        token_type_ids [R, T]: missing for a model family without type ids.
        text_index [N, L]: the positions of each input's tokens in the flattened rows, in the order
            of `encodings`, -1 after its end; L is 1 with `first_only`.
        entity_spans [N, 4]: start and end of both entities relative to the input, if it has any.
    """
    placement = _Placement.of([len(encoding) for encoding in encodings], rows, step)
    ids_S = np.concatenate([encoding.ids for encoding in encodings])
    types = [encoding.type_ids for encoding in encodings if encoding.type_ids is not None]
    arrays = {
        "input_ids": placement.scatter(ids_S, padding.pad_id),
        "position_ids": placement.scatter(placement.positions_S, 0),
        "segment_ids": placement.scatter(placement.segments_S, -1),
        "text_index": placement.index(first_only=first_only),
    }
    if padding.type_ids:
        type_ids_S = np.concatenate(types)
        arrays["token_type_ids"] = placement.scatter(type_ids_S, padding.pad_type_id)
    spans = [encoding.entity_spans for encoding in encodings if encoding.entity_spans is not None]
    if len(spans) == len(encodings):
        arrays["entity_spans"] = np.array(spans, np.int64).reshape(len(encodings), 4)
    return arrays


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Fixed sizes of a call: tokens of all inputs, number of inputs, tokens of an input."""

    tokens: int
    inputs: int
    longest: int

    def holds(self, lengths_N: Sequence[int]) -> bool:
        """Return whether inputs of these lengths fit."""
        fits = sum(lengths_N) <= self.tokens and len(lengths_N) <= self.inputs
        return fits and max(lengths_N) <= self.longest


def concatenate(
    encodings: Sequence[Encoding],
    padding: Padding,
    *,
    first_only: bool,
    bucket: Bucket | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Concatenate N >= 1 encodings into one row without padding, or fill the sizes of a bucket.

    Returns:
        The arrays by the input names of varlen graphs, int64: those of `pack` with R = 1, and

        cumulative_lengths [N + 1]: the end of each input in the row, after 0.
        token_offset [N, L]: see `token_offsets`.

        In a bucket, empty inputs follow, and padding after their end, which no input reads. The
        values of `token_offset` are 0: kernels of fixed sizes read its shape only.
    """
    arrays = pack(encodings, [range(len(encodings))], padding, first_only=first_only)
    lengths_N = [len(encoding) for encoding in encodings]
    arrays[LENGTHS] = np.cumsum([0, *lengths_N])
    if bucket is None:
        return arrays | {OFFSET: token_offsets(lengths_N)}
    for name in ("input_ids", "position_ids", "token_type_ids"):
        if name in arrays:
            fill = padding.pad_id if name == "input_ids" else 0
            arrays[name] = _filled(arrays[name], (1, bucket.tokens), fill)
    width = arrays["text_index"].shape[1]
    arrays["text_index"] = _filled(arrays["text_index"], (bucket.inputs, width), 0)
    arrays[LENGTHS] = _filled(arrays[LENGTHS], (bucket.inputs + 1,), arrays[LENGTHS][-1])
    arrays[OFFSET] = np.broadcast_to(np.int64(0), (bucket.inputs, bucket.longest))
    return arrays


def token_offsets(lengths: Sequence[int], longest: int = 0) -> NDArray[np.int64]:
    """Return the places of all tokens in padded rows [N, L], flattened, then those of the padding.

    `longest` is L, if it is more than the largest length.
    """
    lengths_N = np.array(lengths)
    width = max(longest, int(lengths_N.max()))
    places_NL = np.arange(len(lengths) * width).reshape(len(lengths), width)
    is_token_NL = np.arange(width) < lengths_N[:, None]
    return np.concatenate([places_NL[is_token_NL], places_NL[~is_token_NL]]).reshape(-1, width)


def _filled(values: NDArray[np.int64], shape: tuple[int, ...], fill: int) -> NDArray[np.int64]:
    """Return an array of a larger shape with the values at its start."""
    filled = np.full(shape, fill, np.int64)
    filled[tuple(slice(size) for size in values.shape)] = values
    return filled


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Placement:
    """The target position of each token; S counts the tokens of all inputs in input order.

    Attributes:
        shape: (R, T).
        numbers_S: the input that a token belongs to.
        positions_S: the token's position in its input.
        segments_S: the index of the input in its row.
        targets_S: the token's position in the flattened rows.
    """

    shape: tuple[int, int]
    numbers_S: NDArray[np.int64]
    positions_S: NDArray[np.int64]
    segments_S: NDArray[np.int64]
    targets_S: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: Sequence[int], rows: Sequence[Sequence[int]], step: int) -> "_Placement":
        width = round_up(max(sum(lengths[index] for index in row) for row in rows), step)
        starts_N = np.zeros(len(lengths), np.int64)
        segments_N = np.zeros(len(lengths), np.int64)
        for number, row in enumerate(rows):
            start = number * width
            for segment, index in enumerate(row):
                starts_N[index], segments_N[index] = start, segment
                start += lengths[index]
        numbers_S = np.repeat(np.arange(len(lengths)), lengths)
        lengths_N = np.array(lengths, np.int64)
        before_N = np.cumsum(lengths_N) - lengths_N
        positions_S = np.arange(len(numbers_S)) - before_N[numbers_S]
        return cls(
            shape=(len(rows), width),
            numbers_S=numbers_S,
            positions_S=positions_S,
            segments_S=segments_N[numbers_S],
            targets_S=starts_N[numbers_S] + positions_S,
        )

    def scatter(self, values_S: NDArray[np.signedinteger], fill: int) -> NDArray[np.int64]:
        """Return int64 [R, T] with the tokens' values at their positions and `fill` elsewhere."""
        flat = np.full(self.shape[0] * self.shape[1], fill, np.int64)
        flat[self.targets_S] = values_S
        return flat.reshape(self.shape)

    def index(self, *, first_only: bool) -> NDArray[np.int64]:
        """Return the array `text_index` of `pack`."""
        first_S = self.positions_S == 0
        if first_only:
            return self.targets_S[first_S, None]
        index_NL = np.full((first_S.sum(), self.positions_S.max() + 1), -1, np.int64)
        index_NL[self.numbers_S, self.positions_S] = self.targets_S
        return index_NL
