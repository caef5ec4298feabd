"""Whether an engine answers as the checkpoint does, on real rows at many shapes.

The reference is the checkpoint, loaded afresh: over the grid one input at a time and unpadded, over
dev in batches of like length, because there it is many rows. The engine is the one that serves.
Over the grid it gets batches of several sizes and mixed lengths, each run as one padded batch, also
where the server would cut it; over dev it works as it does in the server.

Shapes: N inputs, C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipework.encoding import Encoding, TextEncoder
from pipework.evaluation import Engine, evaluate
from pipework.examples import Example
from pipework.manifest import Metric, Parity, Precision, Task
from pipework.predictions import decide, given_labels
from pipework.progress import Progress

TOLERANCES = {Precision.FP32: 1e-4}
BATCH_SIZES = (1, 2, 7, 32)
GRID_ROWS = 96
CHUNK = 256
WORST = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One input of the proof: what it is in words, and its ids."""

    name: str
    encoding: Encoding


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where an engine differed: the input, the size of its batch, logits apart, both answers.

    `flipped` says whether the labels changed; a regression has none that could.
    """

    name: str
    tokens: int
    batch: int
    max_abs: float
    mean_abs: float
    expected: str
    found: str
    flipped: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The proof, and the inputs that differed most, the worst first."""

    parity: Parity
    worst: tuple[Difference, ...]


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


def prove(  # noqa: PLR0913  (who answers, what is asked, and what to hold them to)
    *,
    alone: Engine,
    reference: Engine,
    whole: Engine,
    engine: Engine,
    grid: Sequence[Row],
    dev: Sequence[Row],
    truth: NDArray[np.generic],
    task: Task,
    tolerance: float,
    progress: Progress,
) -> Verdict:
    """Compare an engine with the reference over the grid, in every batch size, and over dev.

    Args:
        alone: the checkpoint, one input at a time.
        reference: the checkpoint, as fast as it can.
        whole: the engine on trial, running each batch as it is given.
        engine: the same as it will serve.
        grid: inputs that are run at each of BATCH_SIZES.
        dev: labelled real rows, run once, for the accuracy of both.
        truth: of `dev`, as `pipework.evaluation.truth` gives it.
        task: what is decided, and by which score it is judged.
        tolerance: the largest absolute difference of a logit that passes.
        progress: hears of the inputs done.
    """
    progress.begin("prove", len(grid) * (1 + len(BATCH_SIZES)) + 2 * len(dev), "rows")
    expected_NC = _infer(alone, grid, len(grid), progress)
    runs = [
        _compare(grid, size, task, expected_NC, _infer(whole, grid, size, progress))
        for size in BATCH_SIZES
    ]
    expected_dev_NC = _infer(reference, dev, CHUNK, progress)
    found_dev_NC = _infer(engine, dev, CHUNK, progress)
    runs.append(_compare(dev, CHUNK, task, expected_dev_NC, found_dev_NC))
    progress.end()
    differences = [difference for run in runs for difference in run]
    return _verdict(
        differences,
        shapes=sorted({shape for size in BATCH_SIZES for shape in _shapes(grid, size)}),
        metric=task.metric,
        scores=tuple(
            evaluate(logits_NC, truth, task).score for logits_NC in (expected_dev_NC, found_dev_NC)
        ),
        tolerance=tolerance,
    )


def _verdict(
    differences: Sequence[Difference],
    *,
    shapes: Sequence[tuple[int, int]],
    metric: Metric,
    scores: tuple[float, ...],
    tolerance: float,
) -> Verdict:
    worst = sorted(differences, key=lambda one: -one.max_abs)
    flips = sum(one.flipped for one in differences)
    score_reference, score_engine = scores
    parity = Parity(
        reference="checkpoint, loaded afresh, float32; the grid one input at a time",
        rows=len(differences),
        shapes=tuple(shapes),
        max_abs=worst[0].max_abs,
        mean_abs=float(np.mean([one.mean_abs for one in differences])),
        argmax_agreement=1 - flips / len(differences),
        flips=flips,
        metric=metric,
        score_reference=score_reference,
        score_engine=score_engine,
        tolerance=tolerance,
        passed=worst[0].max_abs <= tolerance,
    )
    return Verdict(parity=parity, worst=tuple(worst[:WORST]))


def _infer(
    engine: Engine, rows: Sequence[Row], size: int, progress: Progress
) -> NDArray[np.float32]:
    parts = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        parts.append(engine.infer([row.encoding for row in batch]))
        progress.advance(len(batch))
    return np.concatenate(parts)


def _compare(
    rows: Sequence[Row],
    size: int,
    task: Task,
    expected_NC: NDArray[np.float32],
    found_NC: NDArray[np.float32],
) -> list[Difference]:
    # A logit that is no number is infinitely far away, not "not more than the tolerance".
    apart_NC = np.nan_to_num(np.abs(found_NC - expected_NC), nan=np.inf, posinf=np.inf)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        expected_N, found_N = (decide(logits_NC, task) for logits_NC in (expected_NC, found_NC))
        flipped_N = (given_labels(expected_NC, task) != given_labels(found_NC, task)).any(axis=1)
    return [
        Difference(
            name=row.name,
            tokens=len(row.encoding),
            batch=size,
            max_abs=float(apart_C.max()),
            mean_abs=float(apart_C.mean()),
            expected=expected.words()[0] or "no label",
            found=found.words()[0] or "no label",
            flipped=bool(flipped),
        )
        for row, apart_C, expected, found, flipped in zip(
            rows, apart_NC, expected_N, found_N, flipped_N, strict=True
        )
    ]


def _shapes(rows: Sequence[Row], size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        yield len(batch), max(len(row.encoding) for row in batch)


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
