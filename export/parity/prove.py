"""Check the parity of an engine with the checkpoint, on real rows and edge cases.

The reference is the checkpoint, loaded from disk again. It runs the edge cases one by one without
padding, and the dev rows in batches of similar length to save time. The engine runs the edge cases
in the batches of `pipework.export.parity.case`, each as one call even if the server would split
it, and the dev rows as it does in the server.

Shapes: N inputs, C classes, X results of the engine: one per input and batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipework.cpu import processor
from pipework.export.parity.case import Case, EngineFailedError, Logits, ProofBatch, batch_mixes
from pipework.export.parity.score_change import ScoreChange, compare_scores
from pipework.export.rows.run_rows import RunRows
from pipework.progress import Progress
from pipework.run_folder.engine_record import Parity, Tolerance
from pipework.scoring.evaluation import Engine
from pipework.scoring.logit_diff import Breach, Comparison
from pipework.train.model.checkpoint_engine import CheckpointEngine

CHUNK = 256
WORST = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceLogits:
    """The checkpoint's logits, float32 [N, C], for the edge cases (one by one) and dev rows."""

    edge_NC: Logits
    dev_NC: Logits

    @classmethod
    def of(
        cls, run_rows: RunRows, reference: CheckpointEngine, progress: Progress
    ) -> "ReferenceLogits":
        """Run the checkpoint."""
        edge = [row.encoding for row in run_rows.edge_cases]
        dev = [row.encoding for row in run_rows.dev]
        progress.begin("checkpoint", len(edge) + len(dev), "rows")
        edge_NC = reference.one_by_one().infer(edge)
        progress.advance(len(edge))
        parts = []
        for start in range(0, len(dev), CHUNK):
            parts.append(reference.infer(dev[start : start + CHUNK]))
            progress.advance(len(parts[-1]))
        progress.end()
        return cls(edge_NC=edge_NC, dev_NC=np.concatenate(parts))


@dataclass(frozen=True, kw_only=True, eq=False)
class ProofResult:
    """A parity record, the limits that it breaks, and the inputs that differ most, worst first."""

    parity: Parity
    breaches: tuple[Breach, ...]
    comparison: Comparison
    worst: tuple[Case, ...]


def prove(
    run_rows: RunRows,
    expected: ReferenceLogits,
    *,
    whole: Engine,
    engine: Engine,
    tolerance: Tolerance,
    progress: Progress,
) -> ProofResult:
    """Compare an engine with the checkpoint on edge cases, in all batch mixes, and on dev rows.

    Args:
        run_rows: the rows and the task.
        expected: the checkpoint's logits.
        whole: the engine, set to run each batch as one call.
        engine: the same engine with the settings of the server.
        tolerance: the limits to pass.
        progress: receives the finished inputs.

    Raises:
        EngineFailedError: the engine raises an error for a batch.
    """
    batches = _edge_batches(run_rows, expected) + _dev_batches(run_rows, expected)
    progress.begin("parity check", sum(len(batch.rows) for batch in batches), "rows")
    logits = [_infer(whole if batch.whole else engine, batch, progress) for batch in batches]
    progress.end()
    comparison = Comparison(
        task=run_rows.manifest.task,
        expected_XC=np.concatenate([batch.expected_BC for batch in batches]),
        found_XC=np.concatenate(logits),
        input_X=np.concatenate([batch.inputs for batch in batches]).astype(np.int64),
    )
    score_change = _score_change(run_rows, expected, comparison)
    score_drop = 0.0 if score_change is None else score_change.drop
    breaches = comparison.breaches(tolerance, score_drop=score_drop)
    shapes = {(len(batch.rows), _longest(batch)) for batch in batches if batch.whole}
    return ProofResult(
        parity=_parity(comparison, score_change, tolerance, tuple(sorted(shapes)), not breaches),
        breaches=breaches,
        comparison=comparison,
        worst=_worst(batches, comparison),
    )


def _edge_batches(run_rows: RunRows, expected: ReferenceLogits) -> list[ProofBatch]:
    return [
        ProofBatch(
            rows=[run_rows.edge_cases[row] for row in mix.rows],
            inputs=mix.rows,
            rule=mix.rule,
            whole=True,
            expected_BC=expected.edge_NC[list(mix.rows)],
        )
        for mix in batch_mixes([len(row.encoding) for row in run_rows.edge_cases])
    ]


def _dev_batches(run_rows: RunRows, expected: ReferenceLogits) -> list[ProofBatch]:
    chunks = (slice(start, start + CHUNK) for start in range(0, len(run_rows.dev), CHUNK))
    numbers = range(len(run_rows.edge_cases), len(run_rows.edge_cases) + len(run_rows.dev))
    return [
        ProofBatch(
            rows=run_rows.dev[chunk],
            inputs=numbers[chunk],
            rule="as in the server",
            whole=False,
            expected_BC=expected.dev_NC[chunk],
        )
        for chunk in chunks
    ]


def _infer(engine: Engine, batch: ProofBatch, progress: Progress) -> Logits:
    try:
        found_BC = engine.infer([row.encoding for row in batch.rows])
    except Exception as error:  # the runtimes' errors share no narrower base
        # Report the longest input, which shows if the graph has a fixed length.
        lengths = [len(row.encoding) for row in batch.rows]
        case = batch.case(int(np.argmax(lengths)), None)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"error for {len(lengths)} inputs of up to {max(lengths)} tokens: {reason}"
        raise EngineFailedError(message, case) from error
    progress.advance(len(batch.rows))
    return found_BC


def _longest(batch: ProofBatch) -> int:
    return max(len(row.encoding) for row in batch.rows)


def _score_change(
    run_rows: RunRows, expected: ReferenceLogits, comparison: Comparison
) -> ScoreChange | None:
    if run_rows.truth_N is None:
        return None
    found_NC = comparison.found_XC[-len(run_rows.dev) :]
    return compare_scores(expected.dev_NC, found_NC, run_rows.truth_N, run_rows.manifest.task)


def _parity(
    comparison: Comparison,
    score_change: ScoreChange | None,
    tolerance: Tolerance,
    shapes: tuple[tuple[int, int], ...],
    passed: bool,
) -> Parity:
    flips = int(comparison.flipped.sum())
    return Parity(
        reference="checkpoint in float32; edge cases one input at a time",
        rows=len(comparison.input_X),
        shapes=shapes,
        unit=comparison.unit,
        max_abs=float(comparison.max_differences.max()),
        mean_abs=float(comparison.differences.mean()),
        max_rel=comparison.max_rel,
        max_kl=comparison.max_kl,
        spread=comparison.spread,
        argmax_agreement=1 - flips / len(comparison.flipped),
        flips=flips,
        error_bound=comparison.error_bound,
        flips_outside=comparison.flips_outside,
        metric=comparison.task.metric,
        scores=None if score_change is None else score_change.record(),
        processor=processor(),
        tolerance=tolerance,
        passed=passed,
    )


def _worst(batches: Sequence[ProofBatch], comparison: Comparison) -> tuple[Case, ...]:
    """Return the cases that differ most, one per input, the worst first."""
    positions = [(batch, index) for batch in batches for index in range(len(batch.rows))]
    order_X = np.argsort(-comparison.max_differences, kind="stable")
    _, first = np.unique(comparison.input_X[order_X], return_index=True)
    chosen = order_X[np.sort(first)][:WORST]
    return tuple(
        positions[x][0].case(positions[x][1], comparison.found_XC[x]) for x in chosen.tolist()
    )
