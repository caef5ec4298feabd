"""Put a first stage before an engine, and prove how often its labels differ from the engine's.

See `pipework.scoring.agreement` for the choice of the score and the proof.

Shapes: N rows, C classes.
"""

import shutil
from pathlib import Path

from pipework.data.examples import Example
from pipework.errors import CheckFailedError
from pipework.export.config import CascadeSettings
from pipework.export.convert.onnx2ort import ONNX_FP32
from pipework.export.first_stage import (
    MeasuredStages,
    Stage,
    check_first_stage,
    copy_first_stage,
    proof_rows,
)
from pipework.export.run import export
from pipework.progress import Progress, counted
from pipework.run_folder.cascade import FOLDER, CascadeRecord
from pipework.run_folder.manifest import LockedRun, Manifest, read_classifier
from pipework.scoring.abstention import CONFIDENCE
from pipework.scoring.agreement import lowest_score, rows_needed, smallest_limit
from pipework.train.report.baseline import FOLDER as LINEAR


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
    check_first_stage(run, manifest, folder)
    rows, source = _enough_rows(run, manifest, settings)
    if not read_classifier(folder).current_engines:
        export(folder, progress, (ONNX_FP32,))
    stages = Stage.of(folder, threads=1), Stage.of(run)
    measured = MeasuredStages.of(*stages, rows, progress)
    limit, scores_N, differs_N = settings.max_difference, measured.scores_N, measured.differs_N
    min_score = lowest_score(scores_N, differs_N, limit)
    if min_score is None:
        hint = "even with the highest scores too many differ: raise cascade.max_difference"
        raise _refused(len(rows), limit, source, hint)
    answered_N = scores_N >= min_score
    record = CascadeRecord(
        first=stages[0].manifest.identity.name if first else LINEAR,
        first_digest=stages[0].engine.digest,
        engine=stages[1].engine.name,
        engine_digest=stages[1].engine.digest,
        min_score=min_score,
        max_difference=limit,
        source=source,
        rows=len(rows),
        answered=int(answered_N.sum()),
        differing=int((answered_N & differs_N).sum()),
        encode_us=measured.encode_us,
        first_us=measured.text_us[0],
        engine_us=measured.text_us[1],
    )
    if all(row.label is not None for row in rows):
        score, gain = measured.score_and_gain(manifest.task, rows, source, answered_N)
        record = record.model_copy(update={"score": score, "gain": gain})
    if record.speedup < 1:
        progress.note("the cascade is slower than the engine alone: its first stage is too slow")
    copy_first_stage(run, folder, stages[0].manifest, stages[0].engine)
    sealed = record.sealed(manifest.subject)
    locked.record_cascade(sealed)
    return sealed


def _enough_rows(
    run: Path, manifest: Manifest, settings: CascadeSettings
) -> tuple[list[Example], str]:
    """Return the rows that prove a cascade, and their name.

    Raises:
        CheckFailedError: they are too few for the limit, also if no label differs.
    """
    rows, source = proof_rows(run, manifest, settings)
    count, needed = len(rows), rows_needed(settings.max_difference)
    if count < needed:
        limit = f"a limit of {smallest_limit(count):.2%}"
        hint = f"at least {needed:,} rows are needed (cascade.rows=FILE), or {limit}"
        raise _refused(count, settings.max_difference, source, hint)
    return rows, source


def _refused(rows: int, max_difference: float, source: str, hint: str) -> CheckFailedError:
    message = (
        f"{counted(rows, 'row')} of {source} cannot show with {CONFIDENCE:.0%} confidence that at "
        f"most {max_difference:.2%} of the labels differ"
    )
    return CheckFailedError(message, hint)
