"""Several inputs side by side in one row, for engines whose graph keeps them apart.

Positions start again at 0 for each input, attention is limited to tokens of the same segment
number, and the states of each input are gathered by index. Hardly anything in a row is padding,
however lengths mix.

Shapes: R rows, T tokens of a row, N inputs, L tokens of the longest of them.
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

# A row of so many tokens costs twice what its tokens cost beside attention. Measured with 384
# hidden units on two cores of an EPYC, where 500 is best with int8 that has float32 attention, and
# 1000 with bf16.
ATTENTION_TOKENS = 1000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Packed:
    """Rows of inputs.

    Attributes:
        ids_RT: int64, the padding id behind the last input of a row.
        positions_RT: int64, from 0 in each input, 0 in the padding.
        segments_RT: int64, the number of the input in its row, -1 in the padding.
        type_ids_RT: int64, or None for a family that has none.
        index_NL: int64, where in the flattened rows the tokens of each input stand, -1 behind
            its end; L is 1 where only the first token is read.
        spans_N4: int64, start and end of both entities, counted in the input, or None.
    """

    ids_RT: NDArray[np.int64]
    positions_RT: NDArray[np.int64]
    segments_RT: NDArray[np.int64]
    type_ids_RT: NDArray[np.int64] | None
    index_NL: NDArray[np.int64]
    spans_N4: NDArray[np.int64] | None

    def inputs(self) -> dict[str, NDArray[np.int64]]:
        """Return the arrays by the names that packed graphs give them."""
        named = {
            "input_ids": self.ids_RT,
            "position_ids": self.positions_RT,
            "segment_ids": self.segments_RT,
            "token_type_ids": self.type_ids_RT,
            "text_index": self.index_NL,
            "entity_spans": self.spans_N4,
        }
        return {name: array for name, array in named.items() if array is not None}


def bins(lengths_N: Sequence[int], most: int) -> list[list[int]]:
    """Distribute inputs over as few bins of at most `most` tokens as can be, the longest first.

    An input that is longer has a bin of its own. Best-fit decreasing: each goes where it leaves
    the least room, which needs at most 11/9 of the fewest bins possible and four more (Johnson et
    al. 1974, https://doi.org/10.1137/0203025). N log N, but for the moves inside a list.
    """
    filled: list[list[int]] = []
    room: list[tuple[int, int]] = []  # what is left in a bin, and its number; sorted
    for index in _longest_first(lengths_N):
        length = lengths_N[index]
        fitting = bisect_left(room, (length, 0))
        if fitting < len(room):
            left, number = room.pop(fitting)
        else:
            left, number = max(most, length), len(filled)
            filled.append([])
        filled[number].append(index)
        insort(room, (left - length, number))
    return filled


def even_bins(lengths_N: Sequence[int], most: int) -> list[list[int]]:
    """Distribute inputs over bins of about as many tokens, `most` at most, like lengths together.

    So no bin holds only what the others had no room for, and rows of short inputs need not be as
    wide as the longest of all. An input that is longer has a bin of its own.
    """
    order, tokens = _longest_first(lengths_N), sum(lengths_N)
    count = -(-tokens // most)
    while len(filled := _cut(lengths_N, order, most, enough=tokens / max(1, count))) > count:
        count = len(filled)
    return filled


def _cut(
    lengths_N: Sequence[int], order: Sequence[int], most: int, enough: float
) -> list[list[int]]:
    filled: list[list[int]] = []
    size = inf
    for index in order:
        if size >= enough or size + lengths_N[index] > most:
            filled.append([])
            size = 0
        filled[-1].append(index)
        size += lengths_N[index]
    return filled


def even_rows(lengths_N: Sequence[int], row_tokens: int, step: int = 1) -> list[list[int]]:
    """Distribute N >= 1 inputs over rows of like widths, as many of them as cost least.

    Each token attends to its whole row, so narrow rows cost less, until filling them up to the
    widest costs more. The longest go first, each to the emptiest row (longest processing time,
    Graham 1969, https://doi.org/10.1137/0117039).

    Args:
        lengths_N: tokens of each input.
        row_tokens: as `widest_row` takes it.
        step: as `pack` takes it.
    """
    order = _longest_first(lengths_N)
    tokens, longest = sum(lengths_N), lengths_N[order[0]]
    widest = widest_row(longest, row_tokens)
    best: list[list[int]] = []
    least = inf
    for count in range(-(-tokens // widest), len(order) + 1):
        at_least = max(longest, -(-tokens // count))
        if _cost(count, filled_up(at_least, step)) < least:
            rows, width = _spread(lengths_N, order, count)
            cost = _cost(count, filled_up(width, step))
            if width <= widest and cost < least:
                best, least = rows, cost
        elif at_least == longest:
            break
    return best


def widest_row(longest: int, row_tokens: int) -> int:
    """Return the most tokens of a row: `row_tokens`, or less where all inputs are short.

    Rows, before they are filled up, are at most twice as wide as the longest input, and never
    narrower than that, so that engines which are built for a range of shapes have narrow ones for
    short inputs.
    """
    return max(longest, min(row_tokens, 2 * longest))


def filled_up(width: int, step: int) -> int:
    """Return the width of rows that are filled up to a multiple of `step`."""
    return -(-width // step) * step


def _longest_first(lengths_N: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths_N)), key=lengths_N.__getitem__, reverse=True)


def _cost(rows: int, width: int) -> float:
    return rows * width * (1 + width / ATTENTION_TOKENS)


def _spread(
    lengths_N: Sequence[int], order: Sequence[int], count: int
) -> tuple[list[list[int]], int]:
    """Return rows and the width of the widest."""
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
) -> Packed:
    """Lay N >= 1 encodings into R >= 1 rows, as `even_rows` distributed them.

    The inputs keep their order: row n of `index_NL` is of `encodings[n]`. T is a multiple of
    `step`.
    """
    laid = _Laid.of([len(one) for one in encodings], rows, step)
    ids_RT = laid.spread(np.concatenate([one.ids for one in encodings]), padding.pad_id)
    types = [one.type_ids for one in encodings if one.type_ids is not None]
    type_ids_RT = None
    if padding.type_ids:
        type_ids_RT = laid.spread(np.concatenate(types), padding.pad_type_id)
    return Packed(
        ids_RT=ids_RT,
        positions_RT=laid.spread(laid.positions_S, 0),
        segments_RT=laid.spread(laid.segments_S, -1),
        type_ids_RT=type_ids_RT,
        index_NL=laid.index(first_only=first_only),
        spans_N4=_spans(encodings),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Laid:
    """Where each token goes; S counts the tokens of all inputs, in the inputs' order.

    Attributes:
        shape: (R, T).
        numbers_S: the input that a token is of.
        positions_S: its place in the input.
        segments_S: the number of the input in its row.
        places_S: its place in the flattened rows.
    """

    shape: tuple[int, int]
    numbers_S: NDArray[np.int64]
    positions_S: NDArray[np.int64]
    segments_S: NDArray[np.int64]
    places_S: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: Sequence[int], rows: Sequence[Sequence[int]], step: int) -> "_Laid":
        width = filled_up(max(sum(lengths[index] for index in row) for row in rows), step)
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
            places_S=starts_N[numbers_S] + positions_S,
        )

    def spread(self, values_S: NDArray[np.signedinteger], rest: int) -> NDArray[np.int64]:
        """Return int64 [R, T] with the tokens' values in their places and `rest` elsewhere."""
        flat = np.full(self.shape[0] * self.shape[1], rest, np.int64)
        flat[self.places_S] = values_S
        return flat.reshape(self.shape)

    def index(self, *, first_only: bool) -> NDArray[np.int64]:
        """Return `Packed.index_NL`."""
        first_S = self.positions_S == 0
        if first_only:
            return self.places_S[first_S, None]
        index_NL = np.full((first_S.sum(), self.positions_S.max() + 1), -1, np.int64)
        index_NL[self.numbers_S, self.positions_S] = self.places_S
        return index_NL


def _spans(encodings: Sequence[Encoding]) -> NDArray[np.int64] | None:
    spans = [one.entity_spans for one in encodings if one.entity_spans is not None]
    if len(spans) < len(encodings):
        return None
    return np.array(spans, np.int64).reshape(len(encodings), 4)
