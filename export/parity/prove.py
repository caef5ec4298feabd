"""Check the parity of an engine with the checkpoint, on real rows and edge cases.

The reference is the checkpoint, loaded from disk again. It runs the edge cases one by one without
padding, and the dev rows in batches of similar length to save time. The engine runs the edge cases
in the batches of `pipework.export.parity.case`, each as one call even if the server would split
it, and the dev rows as it does in the server. Rows with all tokens of the vocabulary run like dev
rows; their labels are not compared.

Shapes: N inputs, C classes, X results of the engine: one per input and batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipework.export.parity.case import Case, EngineFailedError, ProofBatch, batch_mixes
from pipework.export.parity.rounding import NumberFormat, RoundedCheckpoint, RoundedRows
from pipework.export.parity.score_change import ScoreChange, compare_scores
from pipework.export.rows.edge_cases import Row
from pipework.export.rows.run_rows import RunRows
from pipework.machine import processor
from pipework.progress import Progress, counted
from pipework.run_folder.engine_record import Parity, Precision, Tolerance, Variant
from pipework.scoring.evaluation import Engine
from pipework.scoring.logit_diff import Breach, Comparison, value_range
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding
from pipework.train.model.checkpoint_engine import CheckpointEngine

CHUNK = 256
WORST = 8
ROUNDED_ROWS = 500  # of dev, and of the vocabulary


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceLogits:
    """The checkpoint's outputs for the rows of a run; edge cases one by one.

    `rounding` simulates the number format of an engine; its checkpoint must be open then.
    """

    edge: Outputs
    dev: Outputs
    vocabulary: Outputs
    rounding: RoundedCheckpoint

    @classmethod
    def of(
        cls, run_rows: RunRows, reference: CheckpointEngine, progress: Progress
    ) -> "ReferenceLogits":
        """Run the checkpoint."""
        if unread := run_rows.unread_buckets:
            progress.note(
                f"no text was found for {unread} buckets of the n-gram table: not checked"
            )
        edge_rows, dev_rows, words = (
            [row.encoding for row in rows]
            for rows in (run_rows.edge_cases, run_rows.dev, run_rows.vocabulary)
        )
        with progress.stage("checkpoint", len(edge_rows) + len(dev_rows) + len(words), "rows"):
            edge = reference.alone().infer(edge_rows)
            progress.advance(len(edge))
            dev, vocabulary = (
                Outputs.concatenate([edge.part(0, 0), *_infer_chunks(reference, rows, progress)])
                for rows in (dev_rows, words)  # no rows of the vocabulary if no token fits
            )
        step, word_step = (max(1, len(rows) // ROUNDED_ROWS) for rows in (dev, words))
        rounding = RoundedCheckpoint(
            reference=reference,
            rows=RoundedRows(
                encodings=[*edge_rows, *dev_rows[::step], *words[::word_step]],
                expected=Outputs.concatenate(
                    [
                        edge,
                        dev.take(range(0, len(dev), step)),
                        vocabulary.take(range(0, len(words), word_step)),
                    ]
                ),
                labelled=len(edge) + len(dev_rows[::step]),
                calibration=run_rows.calibration_rows,
            ),
            task=run_rows.manifest.task,
            progress=progress,
        )
        return cls(edge=edge, dev=dev, vocabulary=vocabulary, rounding=rounding)

    def tolerance(
        self, run_rows: RunRows, variant: Variant, int8_layers: frozenset[str] = frozenset()
    ) -> Tolerance:
        """Return the limits of an engine, with those that follow from the rounding errors.

        Args:
            run_rows: the run.
            variant: variant of the engine.
            int8_layers: module paths of its layers in int8.

        Raises:
            DataError: the rows that calibrate static int8 are missing.
        """
        tolerance = run_rows.tolerance(variant.precision)
        if variant.precision is Precision.FP32:
            return tolerance
        number_format = NumberFormat(
            precision=variant.precision, scaling=variant.scaling, int8_layers=int8_layers
        )
        return self.rounding.error(number_format).limits(tolerance)


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
    """Compare an engine with the checkpoint on edge cases in all batch mixes, dev and vocabulary.

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
    edge_cases, dev = len(run_rows.edge_cases), len(run_rows.dev)
    batches = [
        *_edge_batches(run_rows, expected),
        *_served_batches(run_rows.dev, expected.dev, edge_cases),
        *_served_batches(run_rows.vocabulary, expected.vocabulary, edge_cases + dev),
    ]
    with progress.stage("parity check", sum(len(batch.rows) for batch in batches), "rows"):
        found = [_infer(whole if batch.whole else engine, batch, progress) for batch in batches]
    all_found = Outputs.concatenate(found)
    comparison = Comparison.of(
        run_rows.manifest.task,
        expected=Outputs.concatenate([batch.expected for batch in batches]),
        found=all_found,
        inputs=np.concatenate([batch.inputs for batch in batches]).astype(np.int64),
        lengths=np.array([len(row.encoding) for batch in batches for row in batch.rows]),
        labelled=edge_cases + dev,
    )
    score_change = _score_change(run_rows, expected, all_found)
    score_drop = 0.0 if score_change is None else score_change.drop
    breaches = comparison.breaches(tolerance, score_drop=score_drop)
    return ProofResult(
        parity=_parity(
            comparison,
            score_change,
            tolerance,
            batches=batches,
            target_range=_target_range(run_rows, expected),
            passed=not breaches,
        ),
        breaches=breaches,
        comparison=comparison,
        worst=_worst(batches, comparison, all_found),
    )


def _edge_batches(run_rows: RunRows, expected: ReferenceLogits) -> list[ProofBatch]:
    return [
        ProofBatch(
            rows=[run_rows.edge_cases[row] for row in mix.rows],
            inputs=mix.rows,
            rule=mix.rule,
            whole=True,
            expected=expected.edge.take(mix.rows),
        )
        for mix in batch_mixes([len(row.encoding) for row in run_rows.edge_cases])
    ]


def _served_batches(rows: Sequence[Row], expected: Outputs, first_input: int) -> list[ProofBatch]:
    """Return batches that run as in the server; the inputs are numbered from `first_input`."""
    chunks = (slice(start, start + CHUNK) for start in range(0, len(rows), CHUNK))
    numbers = range(first_input, first_input + len(rows))
    return [
        ProofBatch(
            rows=rows[chunk],
            inputs=numbers[chunk],
            rule="as in the server",
            whole=False,
            expected=expected.part(*chunk.indices(len(rows))[:2]),
        )
        for chunk in chunks
    ]


def _infer_chunks(
    engine: Engine, encodings: Sequence[Encoding], progress: Progress
) -> Iterator[Outputs]:
    for start in range(0, len(encodings), CHUNK):
        outputs = engine.infer(encodings[start : start + CHUNK])
        progress.advance(len(outputs))
        yield outputs


def _infer(engine: Engine, batch: ProofBatch, progress: Progress) -> Outputs:
    try:
        found = engine.infer([row.encoding for row in batch.rows])
    except Exception as error:  # the runtimes' errors share no narrower base
        # Report the longest input, which shows if the graph has a fixed length.
        lengths = [len(row.encoding) for row in batch.rows]
        case = batch.case(int(np.argmax(lengths)), None)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = (
            f"error for {counted(len(lengths), 'input')} of up to {max(lengths)} tokens: {reason}"
        )
        raise EngineFailedError(message, case) from error
    progress.advance(len(batch.rows))
    return found


def _longest(batch: ProofBatch) -> int:
    return max(len(row.encoding) for row in batch.rows)


def _score_change(
    run_rows: RunRows, expected: ReferenceLogits, found: Outputs
) -> ScoreChange | None:
    if run_rows.truth_N is None:
        return None
    end = len(found) - len(run_rows.vocabulary)
    dev = found.part(end - len(run_rows.dev), end)
    return compare_scores(expected.dev, dev, run_rows.truth_N, run_rows.manifest.task)


def _parity(
    comparison: Comparison,
    score_change: ScoreChange | None,
    tolerance: Tolerance,
    *,
    batches: Sequence[ProofBatch],
    target_range: float,
    passed: bool,
) -> Parity:
    shapes = {(len(batch.rows), _longest(batch)) for batch in batches if batch.whole}
    return Parity(
        **comparison.change(target_range).model_dump(),
        reference="checkpoint in float32; edge cases one input at a time",
        rows=sum(len(batch.rows) for batch in batches),
        shapes=tuple(sorted(shapes)),
        unit=comparison.unit,
        max_abs=float(comparison.max_differences.max()),
        mean_abs=float(comparison.differences.mean()),
        max_rel=comparison.max_rel,
        max_kl=comparison.max_kl,
        spread=comparison.spread,
        error_bound=comparison.error_bound,
        flips_outside=comparison.flips_outside,
        metric=comparison.task.metric,
        scores=None if score_change is None else score_change.record(),
        processor=processor(),
        tolerance=tolerance,
        passed=passed,
    )


def _target_range(run_rows: RunRows, expected: ReferenceLogits) -> float:
    """Return the range of the targets of a regression, or else of its predictions."""
    return value_range(expected.dev.values if run_rows.truth_N is None else run_rows.truth_N)


def _worst(
    batches: Sequence[ProofBatch], comparison: Comparison, found: Outputs
) -> tuple[Case, ...]:
    """Return the cases that differ most, one per input, the worst first."""
    positions = [(batch, index) for batch in batches for index in range(len(batch.rows))]
    inputs = np.concatenate([batch.inputs for batch in batches])
    order = np.argsort(-found.max_per_input(comparison.max_differences), kind="stable")
    _, first = np.unique(inputs[order], return_index=True)
    chosen = order[np.sort(first)][:WORST].tolist()
    cases = ((*positions[number], found.part(number, number + 1)) for number in chosen)
    return tuple(batch.case(index, outputs) for batch, index, outputs in cases)
