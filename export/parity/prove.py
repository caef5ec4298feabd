"""Check the parity of an engine with the checkpoint, on real rows and edge cases.

The reference is the checkpoint, loaded from disk again. It runs the edge cases one by one without
padding, and the other rows in batches of similar length to save time.

The engine runs as it is used: as many engines at the same time as a server opens, with their
threads, and one engine with all threads, as in a bulk job. The server's engines run the edge cases
in the batches of `pipework.export.parity.case`, an input of each length, calls with many short
texts, and large calls with all tokens of the vocabulary, each as one call even if a server would
split it; and a part of dev as a server does. The engine of the bulk job runs all dev rows. Labels
of inputs that are not real texts are not compared.

Shapes: N inputs, C classes, X results of the engine: one per input and batch.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event, Lock

import numpy as np

from pipework.export.parity.batches import CheckedRows, RowGroup
from pipework.export.parity.case import Case, EngineFailedError, ProofBatch, largest_difference
from pipework.export.parity.rounding import NumberFormat, RoundedCheckpoint
from pipework.export.parity.score_change import DevChanges, dev_changes
from pipework.export.rows.run_rows import RunRows
from pipework.progress import NullProgress, Progress, counted
from pipework.run_folder.engine_record import (
    Parity,
    Precision,
    Tolerance,
    Variant,
)
from pipework.scoring.evaluation import CHUNK, infer_all
from pipework.scoring.logit_diff import Breach, Comparison
from pipework.serve.config import BATCH_TOKENS, QueueSettings
from pipework.serve.engines import server_engines
from pipework.serve.engines.base import CollatedEngine
from pipework.tasks.outputs import Outputs
from pipework.train.model.checkpoint_engine import CheckpointEngine

WORST = 8
ROUNDED_ROWS = 500  # of each group of rows
Opener = Callable[..., CollatedEngine]


@dataclass(frozen=True, kw_only=True, eq=False)
class ReferenceLogits:
    """The rows of a run with the checkpoint's outputs; edge cases one by one.

    `rounding` simulates the number format of an engine; its checkpoint must be open then.
    """

    rows: CheckedRows
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
        parts = (
            run_rows.edge_cases,
            [*run_rows.dev, *run_rows.unlabelled],
            run_rows.vocabulary,
            run_rows.lengths,
            run_rows.short,
        )
        groups: list[RowGroup] = []
        with progress.stage("checkpoint", sum(map(len, parts)), "rows"):
            for rows in parts:
                engine = reference if groups else reference.alone()
                outputs = infer_all(engine, [row.encoding for row in rows], NullProgress())
                first = sum(len(group.rows) for group in groups)
                groups.append(RowGroup(rows=rows, expected=outputs, first=first))
                progress.advance(len(outputs))
        simulated = [group.thinned(ROUNDED_ROWS) for group in groups]
        rounding = RoundedCheckpoint(
            reference=reference,
            encodings=[row.encoding for group in simulated for row in group.rows],
            expected=Outputs.concatenate([group.expected for group in simulated]),
            labelled=sum(len(group.rows) for group in simulated[:2]),  # edge cases and dev
            calibration=run_rows.calibration_rows,
            task=run_rows.manifest.task,
            progress=progress,
        )
        return cls(rows=CheckedRows(*groups), rounding=rounding)

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
    opener: Opener,
    tolerance: Tolerance,
    progress: Progress,
) -> ProofResult:
    """Compare an engine with the checkpoint, as servers and bulk jobs run it.

    Args:
        run_rows: the rows and the task.
        expected: the checkpoint's logits.
        opener: opens the engine with a number of `threads`, or else with all.
        tolerance: the limits to pass.
        progress: receives the finished inputs.

    Raises:
        EngineFailedError: the engine raises an error for a batch.
    """
    rows = expected.rows
    served = _run_as_server(opener, rows, run_rows.manifest.input.max_length, progress)
    with opener() as engine:
        engine.fix_costs()
        bulk = _run([engine], [*rows.dev.cut("as in a bulk job", CHUNK)], progress)
    runs = [*served, *bulk]
    batches = [run.batch for run in runs]
    all_found = Outputs.concatenate([run.found for run in runs])
    comparison = Comparison.of(
        run_rows.manifest.task,
        expected=Outputs.concatenate([batch.expected for batch in batches]),
        found=all_found,
        inputs=np.concatenate([batch.inputs for batch in batches]).astype(np.int64),
        lengths=np.array([len(row.encoding) for batch in batches for row in batch.rows]),
        labelled=len(rows.edge.rows) + len(rows.dev.rows),
    )
    dev = Outputs.concatenate([run.found for run in bulk])
    changes = dev_changes(comparison.task, rows.dev.expected, dev, run_rows.truth_N)
    breaches = comparison.breaches(tolerance, score_drop=changes.drop)
    repeat = max(run.repeat for run in runs)
    if repeat > 0:
        breaches = (*breaches, Breach(limit="repeat", found=repeat, allowed=0.0))
    return ProofResult(
        parity=_parity(
            comparison,
            changes,
            tolerance,
            engine=engine,
            batches=batches,
            passed=not breaches,
        ),
        breaches=breaches,
        comparison=comparison,
        worst=_worst(batches, comparison, all_found),
    )


def _run_as_server(
    opener: Opener, rows: CheckedRows, longest: int, progress: Progress
) -> "list[_Run]":
    """Compute batches with the engines of a server with its default settings."""
    count, threads = server_engines(on_gpu=False)
    with ExitStack() as stack:
        engines = [stack.enter_context(opener(threads=threads))]
        on_gpu, layout = engines[0].on_gpu, engines[0].collate.layout
        if not on_gpu:
            engines += [stack.enter_context(opener(threads=threads)) for _ in range(count - 1)]
        done = _run(engines, [*rows.whole_calls(layout, on_gpu=on_gpu)], progress)
        engines[0].learn_costs(longest)
        for engine in engines:
            engine.collate = engines[0].collate
        tokens = QueueSettings().for_engine(engines[0]).batch_tokens or BATCH_TOKENS
        return done + _run(engines, [*rows.as_in_server(tokens)], progress)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """The engine's outputs for a batch, and how far they differ when it is computed again."""

    batch: ProofBatch
    found: Outputs
    repeat: float


def _run(
    engines: Sequence[CollatedEngine], batches: Sequence[ProofBatch], progress: Progress
) -> list[_Run]:
    """Compute batches with several engines at the same time; they take turns."""
    count, lock = len(engines), Lock()
    stopped = Event()

    def run(number: int) -> list[_Run]:
        done: list[_Run] = []
        for batch in batches[number::count]:
            if stopped.is_set():
                break
            found = _infer(engines[number], batch)
            again = _infer(engines[number], batch) if batch.twice else found
            done.append(_Run(batch=batch, found=found, repeat=_difference(found, again)))
            with lock:
                progress.advance(batch.tokens)
        return done

    tokens = sum(batch.tokens for batch in batches)
    with progress.stage("parity check", tokens, "tokens"), ThreadPoolExecutor(count) as pool:
        try:
            parts = list(pool.map(run, range(count)))
        finally:  # the pool waits for its threads, also after Ctrl-C
            stopped.set()
    return [parts[place % count][place // count] for place in range(len(batches))]


def _difference(found: Outputs, again: Outputs) -> float:
    if np.array_equal(found.values, again.values, equal_nan=True):
        return 0.0
    return largest_difference(found.values, again.values)


def _infer(engine: CollatedEngine, batch: ProofBatch) -> Outputs:
    encodings = [row.encoding for row in batch.rows]
    try:
        return engine.infer_whole(encodings) if batch.whole else engine.infer(encodings)
    except Exception as error:  # the runtimes' errors share no narrower base
        # Report the longest input, which shows if the graph has a fixed length.
        lengths = [len(encoding) for encoding in encodings]
        case = batch.case(int(np.argmax(lengths)), None)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = (
            f"error for {counted(len(lengths), 'input')} of up to {max(lengths)} tokens: {reason}"
        )
        raise EngineFailedError(message, case) from error


def _parity(
    comparison: Comparison,
    changes: DevChanges,
    tolerance: Tolerance,
    *,
    engine: CollatedEngine,
    batches: Sequence[ProofBatch],
    passed: bool,
) -> Parity:
    shapes = {
        (len(batch.rows), max(len(row.encoding) for row in batch.rows))
        for batch in batches
        if batch.whole
    }
    return Parity(
        **comparison.change(changes.target_range).model_dump(),
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
        scores=None if changes.scores is None else changes.scores.record(),
        calibration=changes.calibration,
        heads={name: change for name, (change, _) in changes.heads.items()},
        processor=engine.processor,
        on_gpu=engine.on_gpu,
        tolerance=tolerance,
        passed=passed,
    )


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
