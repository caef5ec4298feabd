"""Several inputs side by side in one row, for engines whose graph keeps them apart.

Positions start again at 0 for each input, attention is limited to tokens of the same segment
number, and the states of each input are gathered by index. The cost of a row does not depend on
how lengths mix, since hardly anything in it is padding.

Shapes: R rows, T tokens of a row, N inputs, L tokens of the longest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.encoding import Encoding
from pipework.padding import Padding


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


def rows_of(lengths_N: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Distribute inputs over rows of at most `row_tokens` tokens, the longest first.

    An input that is longer has a row of its own. First-fit decreasing, which needs at most 11/9
    of the fewest rows possible and one more (Johnson 1973).
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths_N)), key=lengths_N.__getitem__, reverse=True):
        length = lengths_N[index]
        fitting = (row for row, left in enumerate(room) if length <= left)
        row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
            room.append(max(row_tokens, length))
        rows[row].append(index)
        room[row] -= length
    return rows


def pack(
    encodings: Sequence[Encoding],
    rows: Sequence[Sequence[int]],
    padding: Padding,
    *,
    first_only: bool,
) -> Packed:
    """Lay N >= 1 encodings into R >= 1 rows, as `rows_of` distributed them.

    The inputs keep their order: row n of `index_NL` is of `encodings[n]`.
    """
    width = max(sum(len(encodings[index]) for index in row) for row in rows)
    ids_RT = np.full((len(rows), width), padding.pad_id, np.int64)
    positions_RT = np.zeros_like(ids_RT)
    segments_RT = np.full_like(ids_RT, -1)
    type_ids_RT = np.full_like(ids_RT, padding.pad_type_id) if padding.type_ids else None
    longest = 1 if first_only else max(map(len, encodings))
    index_NL = np.full((len(encodings), longest), -1, np.int64)
    for number, row in enumerate(rows):
        start = 0
        for segment, index in enumerate(row):
            one = encodings[index]
            place = slice(start, start + len(one))
            ids_RT[number, place] = one.ids
            positions_RT[number, place] = np.arange(len(one))
            segments_RT[number, place] = segment
            if type_ids_RT is not None and one.type_ids is not None:
                type_ids_RT[number, place] = one.type_ids
            read = 1 if first_only else len(one)
            index_NL[index, :read] = number * width + start + np.arange(read)
            start += len(one)
    return Packed(
        ids_RT=ids_RT,
        positions_RT=positions_RT,
        segments_RT=segments_RT,
        type_ids_RT=type_ids_RT,
        index_NL=index_NL,
        spans_N4=_spans(encodings),
    )


def _spans(encodings: Sequence[Encoding]) -> NDArray[np.int64] | None:
    spans = [one.entity_spans for one in encodings if one.entity_spans is not None]
    if len(spans) < len(encodings):
        return None
    return np.array(spans, np.int64).reshape(len(encodings), 4)
