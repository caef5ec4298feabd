"""Put a first stage before an engine, and prove how often its labels differ from the engine's.

See `pipework.scoring.agreement` for the choice of the score and the proof.

Shapes: N rows, C classes.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example
from pipework.errors import CheckFailedError
from pipework.export.config import CascadeSettings
from pipework.export.convert.onnx2ort import ONNX_FP32
from pipework.export.first_stage import check_first_stage, copy_first_stage, proof_rows
from pipework.export.run import export
from pipework.progress import Progress, counted
from pipework.run_folder.cascade import FOLDER, CascadeRecord
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import (
    LockedRun,
    Manifest,
    read_classifier,
)
from pipework.scoring.abstention import CONFIDENCE, Floats
from pipework.scoring.agreement import lowest_score, rows_needed
from pipework.scoring.bootstrap import TaskOutputs, paired_interval
from pipework.scoring.evaluation import infer_all, label_array
from pipework.serve.engines import choose_engine, open_proven
from pipework.tasks.outputs import Outputs
from pipework.text.encoding import Encoding, open_encoder
from pipework.train.report.linear_baseline import FOLDER as LINEAR


def export_cascade(
    locked: LockedRun, first: Path | None, settings: CascadeSettings, progress: Progress
) -> CascadeRecord | None:
    """Choose the lowest score of a first stage, and record the cascade in the run.

    Args:
        locked: the run.
        first: the run of the first stage; None for the linear model of the run.
        settings: the limit, and the rows that prove it; a limit of 0 removes the cascade.
        progress: receives the stages.

    Raises:
        ConfigError: the runs cannot be a cascade.
        CheckFailedError: the rows cannot show that the limit holds.
        PipeError: a run, an engine or the rows cannot be opened.
    """
    run, manifest = locked.folder, locked.manifest
    if not settings.max_difference:
        locked.record_cascade(None)
        shutil.rmtree(run / FOLDER, ignore_errors=True)
        return None
    folder = first or run / LINEAR
    task = check_first_stage(run, manifest, folder)
    engine = choose_engine(manifest)
    if not read_classifier(folder).current_engines:
        export(folder, progress, (ONNX_FP32,))
    first_manifest = read_classifier(folder)
    first_engine = choose_engine(first_manifest)
    rows, source = proof_rows(run, manifest, settings)
    encodings = open_encoder(run, manifest).encode(rows)
    before = _measured(folder, first_manifest, first_engine, encodings, progress)
    after = _measured(run, manifest, engine, encodings, progress)
    scores_N = task.best_scores(before.outputs.values)
    differs_N = before.outputs.values.argmax(axis=1) != after.outputs.values.argmax(axis=1)
    min_score = _checked_score(scores_N, differs_N, settings.max_difference, source)
    answered_N = scores_N >= min_score
    record = CascadeRecord(
        first=first_manifest.identity.name if first else LINEAR,
        first_digest=first_engine.digest,
        engine=engine.name,
        engine_digest=engine.digest,
        min_score=min_score,
        max_difference=settings.max_difference,
        source=source,
        rows=len(rows),
        answered=int(answered_N.sum()),
        differing=int((answered_N & differs_N).sum()),
        first_us=before.text_us,
        engine_us=after.text_us,
    )
    values_NC = np.where(answered_N[:, None], before.outputs.values, after.outputs.values)
    record = record.model_copy(update=_scores(manifest, rows, source, after.outputs, values_NC))
    copy_first_stage(run, folder, first_manifest, first_engine)
    sealed = record.sealed(manifest.subject)
    locked.record_cascade(sealed)
    return sealed


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
    """The outputs of an engine, and the microseconds for a text."""

    outputs: Outputs
    text_us: float


def _measured(
    run: Path,
    manifest: Manifest,
    record: EngineRecord,
    encodings: Sequence[Encoding],
    progress: Progress,
) -> _Measured:
    with open_proven(run, manifest, record.name) as engine:
        engine.infer(encodings[:8])
        start_s = time.perf_counter()
        outputs = infer_all(engine, encodings, progress)
        text_us = 1e6 * (time.perf_counter() - start_s) / len(encodings)
    return _Measured(outputs=outputs, text_us=text_us)


def _checked_score(
    scores_N: Floats, differs_N: NDArray[np.bool_], max_difference: float, source: str
) -> float:
    """Return the lowest score.

    Raises:
        CheckFailedError: the limit does not hold for any.
    """
    found = lowest_score(scores_N, differs_N, max_difference)
    if found is not None:
        return found
    rows, needed = len(scores_N), rows_needed(max_difference)
    message = (
        f"{counted(rows, 'row')} of {source} cannot show with {CONFIDENCE:.0%} confidence that at "
        f"most {max_difference:.2%} of the labels differ"
    )
    hint = "even with the highest scores too many differ: raise cascade.max_difference"
    if needed > rows:
        limit = f"a limit of {needed * max_difference / max(rows, 1):.2%}"
        hint = f"at least {needed:,} rows are needed (cascade.rows=FILE), or {limit}"
    raise CheckFailedError(message, hint)


def _scores(
    manifest: Manifest,
    rows: Sequence[Example],
    source: str,
    engine: Outputs,
    values_NC: NDArray[np.float32],
) -> dict[str, object]:
    """Return the score of the engine and the change by the cascade, if the rows have labels."""
    if any(row.label is None for row in rows):
        return {}
    task = manifest.task
    truth_N = label_array(rows, task, source)
    cascade = Outputs.of(values_NC)
    interval = paired_interval(
        TaskOutputs(outputs=engine, task=task), TaskOutputs(outputs=cascade, task=task), truth_N
    )
    score = task.evaluate(engine, truth_N).score
    gain = task.evaluate(cascade, truth_N).score - score
    return {"score": score, "gain": (gain, interval.low, interval.high)}
