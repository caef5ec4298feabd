"""Whether an engine answers as the checkpoint does, on real rows at many shapes.

The reference is the checkpoint, loaded afresh: over the grid one input at a time and unpadded, over
dev in batches of like length, because there it is many rows. The engine is the one that serves.
Over the grid it gets batches of several sizes and mixed lengths, each run as one call, also where
the server would cut it; over dev it works as it does in the server.

Shapes: N inputs, C classes, K batchings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.grid import Row
from export.subject import Subject
from pipework.engine_record import Parity, Tolerance
from pipework.evaluation import Engine, evaluate
from pipework.predictions import decide, given_labels, probabilities
from pipework.processor import processor
from pipework.progress import Progress
from pipework.task import Task
from train.evaluate import CheckpointEngine

BATCH_SIZES = (1, 2, 7, 32)
CHUNK = 256
WORST = 8
Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What the checkpoint answers, float32 [N, C]: to the grid one by one, and to dev."""

    grid_NC: Logits
    dev_NC: Logits

    @classmethod
    def of(cls, subject: Subject, reference: CheckpointEngine, progress: Progress) -> "Expected":
        """Ask the checkpoint."""
        progress.begin("checkpoint", len(subject.grid) + len(subject.dev), "rows")
        grid_NC = _infer(reference.one_by_one(), subject.grid, len(subject.grid), progress)
        dev_NC = _infer(reference, subject.dev, CHUNK, progress)
        progress.end()
        return cls(grid_NC=grid_NC, dev_NC=dev_NC)


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


def prove(
    subject: Subject,
    expected: Expected,
    *,
    whole: Engine,
    engine: Engine,
    tolerance: Tolerance,
    progress: Progress,
) -> Verdict:
    """Compare an engine with the checkpoint over the grid, in every batch size, and over dev.

    Args:
        subject: the rows and the task.
        expected: what the checkpoint answers.
        whole: the engine on trial, running each batch as it is given.
        engine: the same as it will serve.
        tolerance: what it is held to.
        progress: hears of the inputs done.
    """
    grid, dev, task = subject.grid, subject.dev, subject.manifest.task
    progress.begin("prove", len(grid) * len(BATCH_SIZES) + len(dev), "rows")
    found_KNC = np.stack([_infer(whole, grid, size, progress) for size in BATCH_SIZES])
    found_dev_NC = _infer(engine, dev, CHUNK, progress)
    progress.end()
    differences = [
        difference
        for size, found_NC in zip(BATCH_SIZES, found_KNC, strict=True)
        for difference in _compare(grid, size, task, expected.grid_NC, found_NC)
    ]
    differences += _compare(dev, CHUNK, task, expected.dev_NC, found_dev_NC)
    worst = sorted(differences, key=lambda one: -one.max_abs)
    flips = sum(one.flipped for one in differences)
    before, after = (
        evaluate(logits_NC, subject.truth_N, task).score
        for logits_NC in (expected.dev_NC, found_dev_NC)
    )
    parity = Parity(
        reference="checkpoint, loaded afresh, float32; the grid one input at a time",
        rows=len(differences),
        shapes=tuple(sorted({shape for size in BATCH_SIZES for shape in _shapes(grid, size)})),
        max_abs=worst[0].max_abs,
        mean_abs=float(np.mean([one.mean_abs for one in differences])),
        max_rel=0.0,
        max_kl=_kl(expected.dev_NC, found_dev_NC, task),
        spread=float((found_KNC.max(0) - found_KNC.min(0)).max()),
        argmax_agreement=1 - flips / len(differences),
        flips=flips,
        error_bound=2 * worst[0].max_abs,
        flips_outside=0,
        metric=task.metric,
        score_reference=before,
        score_engine=after,
        low=after - before,
        high=after - before,
        processor=processor(),
        tolerance=tolerance,
        passed=worst[0].max_abs <= tolerance.max_abs,
    )
    return Verdict(parity=parity, worst=tuple(worst[:WORST]))


def _kl(expected_NC: Logits, found_NC: Logits, task: Task) -> float:
    tiny = np.finfo(np.float32).tiny
    p_NC, q_NC = (np.maximum(probabilities(one, task), tiny) for one in (expected_NC, found_NC))
    return float((p_NC * np.log(p_NC / q_NC)).sum(1).max())


def _infer(engine: Engine, rows: Sequence[Row], size: int, progress: Progress) -> Logits:
    parts = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        parts.append(engine.infer([row.encoding for row in batch]))
        progress.advance(len(batch))
    return np.concatenate(parts)


def _compare(
    rows: Sequence[Row], size: int, task: Task, expected_NC: Logits, found_NC: Logits
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
