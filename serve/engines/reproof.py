"""The server's own proof of an engine, from the rows that are kept with it.

It is made where an engine is opened that was built for this machine on another, or proven on
another kind of processor: numbers of less than 32 bits are computed differently from kind to kind.

Shapes: N inputs, C classes, X answers: one for each input in each of its batches.
"""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipework.closeable import Closing
from pipework.errors import CheckFailedError, NotReadyError
from pipework.run_folder.engine_record import EngineRecord, Tolerance
from pipework.run_folder.task import Task
from pipework.scoring.logit_diff import Comparison
from pipework.scoring.reference_rows import KeptRows
from pipework.serve.engines.base import CollatedEngine
from pipework.text.encoding import Encoding

BATCH_SIZES = (1, 32)
HINT = "it is not served; export again here: pipe export RUN --to auto"
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
        self.prove()
        return self._engine.infer(encodings)

    def prove(self) -> None:
        """Prove the engine, if it is not yet.

        Raises:
            CheckFailedError: the proof failed, now or before.
            NotReadyError: the engine cannot be asked.
        """
        if self._refused:
            raise CheckFailedError(self._refused, HINT)
        if self._proven:
            return
        try:
            prove_here(self._engine, self._record, self._kept, self._task, self._sizes)
        except CheckFailedError as error:
            self._refused = str(error)
            raise
        self._proven = True

    def forget(self) -> None:
        """Have it proven again: what computes may be another now."""
        self._proven = False

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

    It is held to every limit of its record but the score, for which labels are not kept.

    Raises:
        CheckFailedError: it does not, an answer depends on who shares the batch, or it fails.
        NotReadyError: it cannot be asked.
    """
    compared = Comparison(
        task=task,
        expected_XC=np.concatenate([kept.logits_NC] * len(sizes)),
        found_XC=np.concatenate([_answers(engine, record, kept, size) for size in sizes]),
        input_X=np.tile(np.arange(len(kept.encodings)), len(sizes)),
    )
    # The deviation of a regression's answers is that of the proof's rows, which are more.
    unit = compared.unit if record.parity is None else record.parity.unit
    figures = _figures(compared, record.tolerance, unit)
    breaches = compared.breaches(record.tolerance, unit=unit)
    if breaches:
        broken = ", ".join(one.limit for one in breaches)
        where = f"on {engine.processor}, beyond {broken}"
        message = f"engine {record.name} answers differently from the checkpoint {where}: {figures}"
        raise CheckFailedError(message, HINT)
    log.info("engine %s proven on %s: %s", record.name, engine.processor, figures)


def _figures(compared: Comparison, tolerance: Tolerance, unit: float) -> str:
    inputs = len(compared.flipped)
    return (
        f"logits up to {compared.apart.max():.3g} apart (tolerance {tolerance.max_abs * unit:.3g}),"
        f" {compared.each_apart.mean():.3g} in the mean ({tolerance.mean_abs * unit:.3g}), "
        f"{compared.spread:.3g} between batches ({tolerance.spread * unit:.3g}), "
        f"{compared.flipped.sum() / inputs:.2%} of the answers changed ({tolerance.flips:.2%}), "
        f"{compared.flips_outside / inputs:.2%} by more than the error bound "
        f"({tolerance.flips_outside:.2%}), over {inputs} rows"
    )


def _answers(
    engine: CollatedEngine, record: EngineRecord, kept: KeptRows, size: int
) -> NDArray[np.float32]:
    rows = kept.encodings
    try:
        parts = [engine.infer(rows[start : start + size]) for start in range(0, len(rows), size)]
    except NotReadyError:
        raise
    except Exception as error:  # the runtimes' errors share no narrower base
        said = (str(error).splitlines() or [type(error).__name__])[0]
        message = f"engine {record.name} fails on {engine.processor} in batches of {size}: {said}"
        raise CheckFailedError(message, HINT) from error
    return np.concatenate(parts)
