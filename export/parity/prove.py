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

from pipework.export.parity.case import Case, EngineFailedError, Logits, ProofBatch, batch_mixes
from pipework.export.parity.rounding import NumberFormat, RoundedCheckpoint, RoundedRows
from pipework.export.parity.score_change import ScoreChange, compare_scores
from pipework.export.rows.edge_cases import Row
from pipework.export.rows.run_rows import RunRows
from pipework.machine import processor
from pipework.progress import Progress, counted
from pipework.run_folder.engine_record import Parity, Precision, Tolerance, Variant
from pipework.scoring.evaluation import Engine
from pipework.scoring.logit_diff import Breach, Comparison, value_range
from pipework.text.encoding import Encoding
from pipework.train.model.checkpoint_engine import CheckpointEngine

CHUNK = 256
WORST = 8
ROUNDED_ROWS = 500  # of dev, and of the vocabulary


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceLogits:
    """The checkpoint's logits, float32 [N, C], for the rows of a run; edge cases one by one.

    `rounding` simulates the number format of an engine; its checkpoint must be open then.
    """

    edge_NC: Logits
    dev_NC: Logits
    vocabulary_NC: Logits
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
        edge, dev, vocabulary = (
            [row.encoding for row in rows]
            for rows in (run_rows.edge_cases, run_rows.dev, run_rows.vocabulary)
        )
        with progress.stage("checkpoint", len(edge) + len(dev) + len(vocabulary), "rows"):
            edge_NC = reference.one_by_one().infer(edge)
            progress.advance(len(edge))
            dev_NC, vocabulary_NC = (
                np.concatenate([edge_NC[:0], *_infer_chunks(reference, rows, progress)])
                for rows in (dev, vocabulary)  # no rows of the vocabulary if no token fits
            )
        step, word_step = (max(1, len(rows) // ROUNDED_ROWS) for rows in (dev, vocabulary))
        rounding = RoundedCheckpoint(
            reference=reference,
            rows=RoundedRows(
                encodings=[*edge, *dev[::step], *vocabulary[::word_step]],
                expected_NC=np.concatenate([edge_NC, dev_NC[::step], vocabulary_NC[::word_step]]),
                labelled=len(edge) + len(dev[::step]),
                calibration=run_rows.calibration_rows,
            ),
            task=run_rows.manifest.task,
            progress=progress,
        )
        return cls(edge_NC=edge_NC, dev_NC=dev_NC, vocabulary_NC=vocabulary_NC, rounding=rounding)

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
        *_served_batches(run_rows.dev, expected.dev_NC, edge_cases),
        *_served_batches(run_rows.vocabulary, expected.vocabulary_NC, edge_cases + dev),
    ]
    with progress.stage("parity check", sum(len(batch.rows) for batch in batches), "rows"):
        logits = [_infer(whole if batch.whole else engine, batch, progress) for batch in batches]
    comparison = Comparison(
        task=run_rows.manifest.task,
        expected_XC=np.concatenate([batch.expected_BC for batch in batches]),
        found_XC=np.concatenate(logits),
        input_X=np.concatenate([batch.inputs for batch in batches]).astype(np.int64),
        lengths_X=np.array([len(row.encoding) for batch in batches for row in batch.rows]),
        labelled=edge_cases + dev,
    )
    score_change = _score_change(run_rows, expected, comparison)
    score_drop = 0.0 if score_change is None else score_change.drop
    breaches = comparison.breaches(tolerance, score_drop=score_drop)
    shapes = {(len(batch.rows), _longest(batch)) for batch in batches if batch.whole}
    return ProofResult(
        parity=_parity(
            comparison,
            score_change,
            tolerance,
            shapes=tuple(sorted(shapes)),
            target_range=_target_range(run_rows, expected),
            passed=not breaches,
        ),
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


def _served_batches(rows: Sequence[Row], expected_NC: Logits, first_input: int) -> list[ProofBatch]:
    """Return batches that run as in the server; the inputs are numbered from `first_input`."""
    chunks = (slice(start, start + CHUNK) for start in range(0, len(rows), CHUNK))
    numbers = range(first_input, first_input + len(rows))
    return [
        ProofBatch(
            rows=rows[chunk],
            inputs=numbers[chunk],
            rule="as in the server",
            whole=False,
            expected_BC=expected_NC[chunk],
        )
        for chunk in chunks
    ]


def _infer_chunks(
    engine: Engine, encodings: Sequence[Encoding], progress: Progress
) -> Iterator[Logits]:
    for start in range(0, len(encodings), CHUNK):
        logits_NC = engine.infer(encodings[start : start + CHUNK])
        progress.advance(len(logits_NC))
        yield logits_NC


def _infer(engine: Engine, batch: ProofBatch, progress: Progress) -> Logits:
    try:
        found_BC = engine.infer([row.encoding for row in batch.rows])
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
    return found_BC


def _longest(batch: ProofBatch) -> int:
    return max(len(row.encoding) for row in batch.rows)


def _score_change(
    run_rows: RunRows, expected: ReferenceLogits, comparison: Comparison
) -> ScoreChange | None:
    if run_rows.truth_N is None:
        return None
    end = len(comparison.found_XC) - len(run_rows.vocabulary)
    found_NC = comparison.found_XC[end - len(run_rows.dev) : end]
    return compare_scores(expected.dev_NC, found_NC, run_rows.truth_N, run_rows.manifest.task)


def _parity(
    comparison: Comparison,
    score_change: ScoreChange | None,
    tolerance: Tolerance,
    *,
    shapes: tuple[tuple[int, int], ...],
    target_range: float,
    passed: bool,
) -> Parity:
    return Parity(
        **comparison.change(target_range).model_dump(),
        reference="checkpoint in float32; edge cases one input at a time",
        rows=len(comparison.input_X),
        shapes=shapes,
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
    return value_range(expected.dev_NC if run_rows.truth_N is None else run_rows.truth_N)


def _worst(batches: Sequence[ProofBatch], comparison: Comparison) -> tuple[Case, ...]:
    """Return the cases that differ most, one per input, the worst first."""
    positions = [(batch, index) for batch in batches for index in range(len(batch.rows))]
    order_X = np.argsort(-comparison.max_differences, kind="stable")
    _, first = np.unique(comparison.input_X[order_X], return_index=True)
    chosen = order_X[np.sort(first)][:WORST]
    return tuple(
        positions[x][0].case(positions[x][1], comparison.found_XC[x]) for x in chosen.tolist()
    )
