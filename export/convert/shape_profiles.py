"""The shapes that a TensorRT engine is made for, from the lengths of real rows.

TensorRT chooses its kernels for a range of shapes, a profile, and sets memory aside for the
largest of them. With several, short texts do not pay for long ones: a call takes the smallest
profile that it fits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipework.run_folder.engine_record import Profile
from pipework.serve.engines.collate import ROW_TOKENS
from pipework.text.packing import widest_row

TEXTS = 32  # the most of a call
USUAL_TEXTS = 8  # of the calls that a profile is tuned for
QUANTILES = (0.5, 0.95)  # of the lengths; the last profile reaches to the limit
MULTIPLE = 8  # tensor cores compute on tiles of 8

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Call:
    """How large a call is: its rows and their width, its texts and the longest of them."""

    rows: int
    width: int
    texts: int
    longest: int


def profiles(
    inputs: Mapping[str, Shape], lengths_N: Sequence[int], limit: int
) -> tuple[Profile, ...]:
    """Return the profiles of a graph, the smallest first.

    Args:
        inputs: the shapes of its inputs by name, with -1 for what varies.
        lengths_N: tokens of real rows.
        limit: tokens of the longest input that the model takes.
    """
    packed = "text_index" in inputs
    calls = _packed_calls(lengths_N, limit) if packed else _padded_calls(lengths_N, limit)
    least = _Call(rows=1, width=1, texts=1, longest=1)
    return tuple(
        Profile(
            smallest=_shapes(inputs, least),
            usual=_shapes(inputs, usual),
            largest=_shapes(inputs, largest),
        )
        for usual, largest in calls
    )


def bands(lengths_N: Sequence[int], limit: int) -> list[int]:
    """Return the lengths up to which the profiles reach, each a multiple of 8 or the limit."""
    found = np.quantile(lengths_N, QUANTILES, method="higher")
    rounded = {-(-int(length) // MULTIPLE) * MULTIPLE for length in found}
    return sorted({min(length, limit) for length in rounded} | {limit})


def _padded_calls(lengths_N: Sequence[int], limit: int) -> Iterator[tuple[_Call, _Call]]:
    for length in bands(lengths_N, limit):
        usual, largest = (
            _Call(rows=texts, width=length, texts=texts, longest=length)
            for texts in (USUAL_TEXTS, TEXTS)
        )
        yield usual, largest


def _packed_calls(lengths_N: Sequence[int], limit: int) -> Iterator[tuple[_Call, _Call]]:
    """Yield calls of a row for each text, which are the most rows.

    Texts of unlike lengths share rows, so the largest is as wide as a row of them may be.
    """
    for length in bands(lengths_N, limit):
        usual = _Call(rows=USUAL_TEXTS, width=length, texts=USUAL_TEXTS, longest=length)
        wide = widest_row(length, ROW_TOKENS)
        yield usual, _Call(rows=TEXTS, width=wide, texts=TEXTS, longest=length)


def _shapes(inputs: Mapping[str, Shape], call: _Call) -> dict[str, Shape]:
    found = {}
    for name, given in inputs.items():
        match name:
            case "text_index":
                wanted = (call.texts, call.longest)
            case "entity_spans":
                wanted = (call.texts, 4)
            case _:
                wanted = (call.rows, call.width)
        pairs = zip(given, wanted, strict=True)
        found[name] = tuple(size if fixed < 0 else fixed for fixed, size in pairs)
    return found
