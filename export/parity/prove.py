"""Whether an engine answers as the checkpoint does, on real rows at many shapes.

The reference is the checkpoint, loaded afresh: over the grid one input at a time and unpadded, over
dev in batches of like length, because there it is many rows. The engine is the one that serves.
Over the grid it gets the batches of `pipework.export.parity.case`, each run as one call, also where the server
would cut it; over dev it works as it does in the server.

Shapes: N inputs, C classes, X answers of the engine: one for each input in each of its batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipework.cpu import processor
from pipework.export.parity.case import Asked, Case, EngineFailedError, Logits, batches
from pipework.export.parity.score_change import Change, change
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress
from pipework.run_folder.engine_record import Parity, Tolerance
from pipework.scoring.evaluation import Engine
from pipework.scoring.logit_diff import Breach, Comparison
from pipework.train.model.checkpoint_engine import CheckpointEngine

CHUNK = 256
WORST = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What the checkpoint answers, float32 [N, C]: to the grid one by one, and to dev."""

    grid_NC: Logits
    dev_NC: Logits

    @classmethod
    def of(cls, subject: Subject, reference: CheckpointEngine, progress: Progress) -> "Expected":
        """Ask the checkpoint."""
        grid, dev = ([row.encoding for row in rows] for rows in (subject.grid, subject.dev))
        progress.begin("checkpoint", len(grid) + len(dev), "rows")
        grid_NC = reference.one_by_one().infer(grid)
        progress.advance(len(grid))
        parts = []
        for start in range(0, len(dev), CHUNK):
            parts.append(reference.infer(dev[start : start + CHUNK]))
            progress.advance(len(parts[-1]))
        progress.end()
        return cls(grid_NC=grid_NC, dev_NC=np.concatenate(parts))


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """The proof, the limits that it breaks, and the inputs that differed most, worst first."""

    parity: Parity
    breaches: tuple[Breach, ...]
    comparison: Comparison
    worst: tuple[Case, ...]


def prove(
    subject: Subject,
    expected: Expected,
    *,
    whole: Engine,
    engine: Engine,
    tolerance: Tolerance,
    progress: Progress,
) -> Verdict:
    """Compare an engine with the checkpoint over the grid, in every company, and over dev.

    Args:
        subject: the rows and the task.
        expected: what the checkpoint answers.
        whole: the engine on trial, running each batch as it is given.
        engine: the same as it will serve.
        tolerance: what it is held to.
        progress: hears of the inputs done.

    Raises:
        EngineFailedError: the engine answers a batch with an error.
    """
    asked = _grid(subject, expected) + _dev(subject, expected)
    progress.begin("prove", sum(len(one.rows) for one in asked), "rows")
    found = [_answer(whole if one.whole else engine, one, progress) for one in asked]
    progress.end()
    comparison = Comparison(
        task=subject.manifest.task,
        expected_XC=np.concatenate([one.expected_BC for one in asked]),
        found_XC=np.concatenate(found),
        input_X=np.concatenate([one.inputs for one in asked]).astype(np.int64),
    )
    scored = _scored(subject, expected, comparison)
    breaches = comparison.breaches(tolerance, score_drop=0.0 if scored is None else scored.drop)
    shapes = {(len(one.rows), _longest(one)) for one in asked if one.whole}
    return Verdict(
        parity=_parity(comparison, scored, tolerance, tuple(sorted(shapes)), not breaches),
        breaches=breaches,
        comparison=comparison,
        worst=_worst(asked, comparison),
    )


def _grid(subject: Subject, expected: Expected) -> list[Asked]:
    return [
        Asked(
            rows=[subject.grid[row] for row in batch.rows],
            inputs=batch.rows,
            rule=batch.rule,
            whole=True,
            expected_BC=expected.grid_NC[list(batch.rows)],
        )
        for batch in batches([len(row.encoding) for row in subject.grid])
    ]


def _dev(subject: Subject, expected: Expected) -> list[Asked]:
    chunks = (slice(start, start + CHUNK) for start in range(0, len(subject.dev), CHUNK))
    numbers = range(len(subject.grid), len(subject.grid) + len(subject.dev))
    return [
        Asked(
            rows=subject.dev[chunk],
            inputs=numbers[chunk],
            rule="as it serves",
            whole=False,
            expected_BC=expected.dev_NC[chunk],
        )
        for chunk in chunks
    ]


def _answer(engine: Engine, asked: Asked, progress: Progress) -> Logits:
    try:
        found_BC = engine.infer([row.encoding for row in asked.rows])
    except Exception as error:  # the runtimes' errors share no narrower base
        # A case is the longest input: a shape that was frozen is seen there.
        lengths = [len(row.encoding) for row in asked.rows]
        case = asked.case(int(np.argmax(lengths)), None)
        said = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"an error for {len(lengths)} inputs of up to {max(lengths)} tokens: {said}"
        raise EngineFailedError(message, case) from error
    progress.advance(len(asked.rows))
    return found_BC


def _longest(asked: Asked) -> int:
    return max(len(row.encoding) for row in asked.rows)


def _scored(subject: Subject, expected: Expected, comparison: Comparison) -> Change | None:
    if subject.truth_N is None:
        return None
    found_NC = comparison.found_XC[-len(subject.dev) :]
    return change(expected.dev_NC, found_NC, subject.truth_N, subject.manifest.task)


def _parity(
    comparison: Comparison,
    scored: Change | None,
    tolerance: Tolerance,
    shapes: tuple[tuple[int, int], ...],
    passed: bool,
) -> Parity:
    flips = int(comparison.flipped.sum())
    return Parity(
        reference="checkpoint, loaded afresh, float32; the grid one input at a time",
        rows=len(comparison.input_X),
        shapes=shapes,
        unit=comparison.unit,
        max_abs=float(comparison.apart.max()),
        mean_abs=float(comparison.each_apart.mean()),
        max_rel=comparison.max_rel,
        max_kl=comparison.max_kl,
        spread=comparison.spread,
        argmax_agreement=1 - flips / len(comparison.flipped),
        flips=flips,
        error_bound=comparison.error_bound,
        flips_outside=comparison.flips_outside,
        metric=comparison.task.metric,
        scores=None if scored is None else scored.record(),
        processor=processor(),
        tolerance=tolerance,
        passed=passed,
    )


def _worst(asked: Sequence[Asked], comparison: Comparison) -> tuple[Case, ...]:
    """Return the answers that differ most, one of each input, the worst first."""
    places = [(one, place) for one in asked for place in range(len(one.rows))]
    order_X = np.argsort(-comparison.apart, kind="stable")
    _, first = np.unique(comparison.input_X[order_X], return_index=True)
    chosen = order_X[np.sort(first)][:WORST]
    return tuple(places[x][0].case(places[x][1], comparison.found_XC[x]) for x in chosen.tolist())
