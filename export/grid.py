"""The inputs that a proof is made on: real rows, and the shapes and texts that break exports."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipework.encoding import Encoding, TextEncoder
from pipework.examples import Example

GRID_ROWS = 96


@dataclass(frozen=True, kw_only=True)
class Row:
    """One input of the proof: what it is in words, and its ids."""

    name: str
    encoding: Encoding


def grid_rows(encoder: TextEncoder, examples: Sequence[Example]) -> list[Row]:
    """Return the inputs of the grid.

    They are real rows, spread over the file; real texts joined and cut to lengths from one token
    of text to the limit; a text far over the limit; and an empty one.
    """
    step = max(1, len(examples) // GRID_ROWS)
    spread = examples[::step][:GRID_ROWS]
    rows = [
        Row(name=f"dev row {index * step + 1}", encoding=encoding)
        for index, encoding in enumerate(encoder.encode(spread))
    ]
    (empty,) = encoder.encode([_empty(examples[0])])
    (joined,) = encoder.encode([_joined(examples, 4 * encoder.max_length)])
    rows += [Row(name="empty text", encoding=empty), Row(name="truncated text", encoding=joined)]
    for length in _lengths(len(empty), encoder.max_length):
        (cut,) = encoder.limited_to(length).encode([_joined(examples, 2 * length)])
        rows.append(Row(name=f"text cut to {length}", encoding=cut))
    # The longest beside the shortest, and so on inwards, so that padding is as much as it can be.
    rows.sort(key=lambda row: len(row.encoding))
    ends = zip(rows, reversed(rows), strict=True)
    return [row for pair in ends for row in pair][: len(rows)]


def _lengths(shortest: int, limit: int) -> list[int]:
    """Return lengths from one token of text to the limit, each twice the one before."""
    lengths = {limit, shortest + 1}
    length = 8
    while length < limit:
        lengths.add(length)
        length *= 2
    return sorted(length for length in lengths if shortest < length <= limit)


def _empty(like: Example) -> Example:
    """Return an input without text, of the same fields as another."""
    return Example(
        text="",
        text_pair=None if like.text_pair is None else "",
        entities=None if like.entities is None else ((0, 0), (0, 0)),
    )


def _joined(examples: Sequence[Example], tokens: int) -> Example:
    """Join real texts until they surely hold so many tokens; a pair is joined on both sides.

    Of entities the first is that of the first text, and the second that of the last.
    """
    several = [examples[index % len(examples)] for index in range(tokens)]
    text = " ".join(example.text for example in several)
    first, last = several[0], several[-1]
    entities = None
    if first.entities is not None and last.entities is not None:
        before = len(text) - len(last.text)
        start, end = last.entities[1]
        entities = (first.entities[0], (before + start, before + end))
    pair = None
    if first.text_pair is not None:
        pair = " ".join(example.text_pair or "" for example in several)
    return Example(text=text, text_pair=pair, entities=entities)
