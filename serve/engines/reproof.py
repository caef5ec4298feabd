"""Parity check of an engine at serving time, on the reference rows stored with it.

It is made for engines that were built on another machine or checked on another kind of processor:
precisions below 32 bits give different results on different processors.

Shapes: N inputs, C classes, X results: one for each input in each batch size.
"""

import logging
from collections.abc import Sequence

import numpy as np

from pipework.closeable import Closeable
from pipework.errors import CheckFailedError, NotReadyError
from pipework.run_folder.engine_record import EngineRecord, Tolerance
from pipework.scoring.logit_diff import Comparison, describe_derived, value_range
from pipework.scoring.reference_rows import ReferenceRows
from pipework.serve.engines.base import CollatedEngine
from pipework.tasks.change import PredictionChange
from pipework.tasks.outputs import Outputs
from pipework.tasks.task import Task
from pipework.text.encoding import Encoding

BATCH_SIZES = (1, 32)
BUCKET_SHARE = 0.75  # of the tokens of a captured call; half of them would fit into a smaller one
HINT = "it is not served; export again on this machine: pipe export RUN --to auto"
log = logging.getLogger(__name__)


class ReprovenEngine(Closeable):
    """Engine wrapper that checks parity before the first batch, when the model may be reachable.

    After a failed check every call fails. If the model was not reachable, the next batch retries.
    """

    def __init__(
        self,
        engine: CollatedEngine,
        record: EngineRecord,
        rows: ReferenceRows,
        task: Task,
        batch: int,
    ) -> None:
        """Take ownership of an engine."""
        self._engine, self._record, self._rows, self._task = engine, record, rows, task
        self._sizes = tuple(min(size, batch) for size in BATCH_SIZES)
        self._proven, self._refused = False, ""

    def infer(self, encodings: Sequence[Encoding]) -> Outputs:
        """Return the outputs of N inputs.

        Raises:
            CheckFailedError: the parity check failed, now or before.
            NotReadyError: the model is not reachable.
        """
        if self._refused:
            raise CheckFailedError(self._refused, HINT)
        if not self._proven:
            try:
                prove_here(self._engine, self._record, self._rows, self._task, self._sizes)
            except CheckFailedError as error:
                self._refused = str(error)
                raise
            self._proven = True
        return self._engine.infer(encodings)

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()


def prove_here(
    engine: CollatedEngine,
    record: EngineRecord,
    rows: ReferenceRows,
    task: Task,
    sizes: Sequence[int] = (),
) -> PredictionChange:
    """Check that an engine reproduces the checkpoint's logits of the reference rows.

    The rows are computed in batches of `sizes`, by default of those of `batch_sizes`. All limits of
    the record apply except that of the score, which needs labels.

    Returns:
        How far the predictions changed, within the limits of the record.

    Raises:
        CheckFailedError: logits differ, depend on the batch size, or the engine fails.
        NotReadyError: the model is not reachable.
    """
    sizes = sizes or batch_sizes(engine, rows)
    found = [_outputs(engine, record, rows, size) for size in sizes]
    comparison = Comparison.of(
        task,
        expected=Outputs.concatenate([rows.outputs] * len(sizes)),
        found=Outputs.concatenate(found),
        inputs=np.tile(np.arange(len(rows.encodings)), len(sizes)),
        lengths=np.tile([len(encoding) for encoding in rows.encodings], len(sizes)),
    )
    # Unit and range of a regression come from the record: its parity check had more rows.
    parity = record.parity
    unit = comparison.unit if parity is None else parity.unit
    target_range = None if parity is None else parity.target_range
    change = comparison.change(target_range or value_range(rows.outputs.values))
    figures = _figures(comparison, record.tolerance, unit)
    breaches = comparison.breaches(record.tolerance, unit=unit)
    if breaches:
        limits = ", ".join(breach.limit for breach in breaches)
        where = f"on {engine.processor}, beyond {limits}"
        derived = describe_derived(breaches, record.precision)
        subject = f"predictions of engine {record.name}"
        message = f"{subject} differ from the checkpoint {where}: {figures}{derived}"
        raise CheckFailedError(message, HINT)
    log.info(
        "engine %s proven on %s: %s; changes %s",
        record.name,
        engine.processor,
        figures,
        task.describe_change(change),
    )
    return change


def batch_sizes(engine: CollatedEngine, rows: ReferenceRows) -> list[int]:
    """Return two sizes of batches, and one for each size of calls that an engine captures."""
    mean = np.mean([len(encoding) for encoding in rows.encodings])
    filled = [round(BUCKET_SHARE * bucket.tokens / mean) for bucket in engine.collate.buckets]
    return sorted({*BATCH_SIZES, *(min(size, len(rows.encodings)) for size in filled if size)})


def _figures(comparison: Comparison, tolerance: Tolerance, unit: float) -> str:
    inputs = len(comparison.flipped)
    return (
        f"logits up to {comparison.max_differences.max():.3g} apart "
        f"(tolerance {tolerance.max_abs * unit:.3g}), "
        f"{comparison.differences.mean():.3g} in the mean ({tolerance.mean_abs * unit:.3g}), "
        f"{comparison.spread:.3g} between batches ({tolerance.spread * unit:.3g}), "
        f"{comparison.flipped.sum() / inputs:.2%} of the answers changed ({tolerance.flips:.2%}), "
        f"{comparison.flips_outside / inputs:.2%} by more than the error bound "
        f"({tolerance.flips_outside:.2%}), over {inputs} rows"
    )


def _outputs(
    engine: CollatedEngine, record: EngineRecord, reference: ReferenceRows, size: int
) -> Outputs:
    rows = reference.encodings
    try:
        parts = [engine.infer(rows[start : start + size]) for start in range(0, len(rows), size)]
    except NotReadyError:
        raise
    except Exception as error:  # the runtimes' errors share no narrower base
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"engine {record.name} fails on {engine.processor} in batches of {size}: {reason}"
        raise CheckFailedError(message, HINT) from error
    return Outputs.concatenate(parts)
