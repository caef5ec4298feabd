"""The server's own proof of an engine, from the rows that are kept with it.

It is made where an engine is opened that was built for this machine on another, or proven on
another kind of processor: numbers of less than 32 bits are computed differently from kind to kind.

Shapes: N inputs, C classes, K batchings.
"""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipework.closing import Closing
from pipework.encoding import Encoding
from pipework.engine_record import EngineRecord
from pipework.errors import CheckFailedError
from pipework.kept_rows import KeptRows
from pipework.predictions import unit_of
from pipework.task import Task
from serve.engines.collated import CollatedEngine

BATCH_SIZES = (1, 32)
EXPORT_HERE = "it is not served; export again here: pipe export RUN"
log = logging.getLogger(__name__)


class ProvenFirst(Closing):
    """An Engine that is proven before its first answer: it cannot be asked when it is opened.

    Once a proof has failed there is no answer; where the engine could not be asked, the next
    batch tries again.
    """

    def __init__(
        self, engine: CollatedEngine, record: EngineRecord, kept: KeptRows, task: Task, batch: int
    ) -> None:
        """Take over an engine, and what `prove_here` needs.

        Args:
            engine: takes at most `batch` texts.
            record: of it.
            kept: the rows.
            task: of the run.
            batch: the most texts that it is ever given.
        """
        self._engine, self._record, self._kept, self._task = engine, record, kept, task
        self._sizes = tuple(min(size, batch) for size in BATCH_SIZES)
        self._proven, self._refused = False, ""

    def infer(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        """Return logits [N, C].

        Raises:
            CheckFailedError: the proof failed.
        """
        if self._refused:
            raise CheckFailedError(self._refused, EXPORT_HERE)
        if not self._proven:
            try:
                prove_here(self._engine, self._record, self._kept, self._task, self._sizes)
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
    kept: KeptRows,
    task: Task,
    sizes: Sequence[int] = BATCH_SIZES,
) -> None:
    """Check that an engine answers the kept rows as the checkpoint did, in batches of two sizes.

    Raises:
        CheckFailedError: it does not, or an answer depends on who shares the batch.
    """
    found_KNC = np.stack([_answers(engine, kept, size) for size in sizes])
    with np.errstate(invalid="ignore"):  # infinity less infinity
        apart_KNC, spread_NC = np.abs(found_KNC - kept.logits_NC), np.ptp(found_KNC, axis=0)
    # What is no number is infinitely far away, not "not more than the tolerance".
    apart_KNC, spread_NC = (
        np.nan_to_num(one, nan=np.inf, posinf=np.inf) for one in (apart_KNC, spread_NC)
    )
    apart, mean, spread = float(apart_KNC.max()), float(apart_KNC.mean()), float(spread_NC.max())
    tolerance, unit, where = record.tolerance, unit_of(kept.logits_NC, task), engine.processor
    limits = tolerance.max_abs * unit, tolerance.mean_abs * unit, tolerance.spread * unit
    figures = (
        f"logits up to {apart:.3g} apart (tolerance {limits[0]:.3g}), {mean:.3g} in the mean "
        f"({limits[1]:.3g}), {spread:.3g} between batches ({limits[2]:.3g}), "
        f"over {len(kept.encodings)} rows"
    )
    if any(found > limit for found, limit in zip((apart, mean, spread), limits, strict=True)):
        message = (
            f"engine {record.name} answers differently from the checkpoint on {where}: {figures}"
        )
        raise CheckFailedError(message, EXPORT_HERE)
    log.info("engine %s proven on %s: %s", record.name, where, figures)


def _answers(
    engine: CollatedEngine, kept: KeptRows, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    rows = kept.encodings
    parts = [engine.infer(rows[start : start + size]) for start in range(0, len(rows), size)]
    return np.concatenate(parts)
