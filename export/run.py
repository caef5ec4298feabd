"""Export a run: build engines, check their parity, and record those that pass."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from pipework.errors import ConfigError, PipeError
from pipework.export.build import EngineBuilder, build
from pipework.export.checked_engine import build_checked
from pipework.export.config import ExportSettings
from pipework.export.convert.onnx2ort import ONNX_FP32
from pipework.export.decision import decide
from pipework.export.parity.prove import ReferenceLogits
from pipework.export.parity.score_change import check_reference
from pipework.export.parity_checker import ParityChecker
from pipework.export.plan import recorded_names, time_left
from pipework.export.ranking import rank, remove_unrecorded
from pipework.export.rows.run_rows import RunRows
from pipework.export.windows import set_windows
from pipework.progress import NullProgress, Progress
from pipework.run_folder.engine_record import EngineRecord, Variant
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import LockedRun
from pipework.train.loop.determinism import exact_float32
from pipework.train.model.checkpoint_engine import CPU, open_reference

RUNTIME_ERRORS = (RuntimeError, MemoryError)  # raised by runtimes during a build


def export(
    run: Path,
    progress: Progress,
    variants: Sequence[Variant] = (ONNX_FP32,),
    *,
    settings: ExportSettings | None = None,
    builder: EngineBuilder = build,
) -> tuple[EngineRecord, ...]:
    """Lock a run and export it as `export_locked` does.

    Raises:
        PipeError: as `LockedRun.open` and `export_locked`.
    """
    with LockedRun.open(run) as locked:
        return export_locked(locked, progress, variants, settings=settings, builder=builder)


def export_locked(
    locked: LockedRun,
    progress: Progress,
    variants: Sequence[Variant],
    *,
    settings: ExportSettings | None = None,
    builder: EngineBuilder = build,
) -> tuple[EngineRecord, ...]:
    """Build engines of a run, check their parity, and record them, the fastest first.

    With `rebuild` off, build nothing and measure the recorded engines again.

    Args:
        locked: the run.
        progress: receives the stages.
        variants: the engine variants to build.
        settings: export settings; None for the defaults.
        builder: writes the files of an engine.

    Raises:
        CheckFailedError: no engine passed the parity check. The details of the error and
            RUN/failed-exports/LABEL show why, see `pipework.export.diagnosis.refusal`.
        RunFolderError: files of the run folder do not match its manifest, or no engine is
            recorded that could be measured again.
        DataError: the dev rows for the parity check are missing, or the rows for the decision.
    """
    # A checked engine is renamed to its digest, and the engine that it replaces is deleted after
    # the manifest is updated: the manifest never records an incomplete or unchecked engine.
    settings = settings or ExportSettings()
    _prepare(locked, settings, progress)
    run, manifest = locked.folder, locked.manifest
    if settings.rebuild and len(variants) > 1:
        labels = ", ".join(variant.label for variant in variants)
        progress.note(f"{len(variants)} engines to build and measure: {labels}")
    names = [] if settings.rebuild else recorded_names(run, manifest, variants)
    measured = [engine for engine in manifest.engines if engine.name in names]
    manifest.check_current(measured)
    for engine in measured:
        verify_files(run, engine.files)
    run_rows = RunRows.open(run, manifest, settings)
    try:
        if settings.rebuild:
            device = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
            opened = open_reference(run, manifest, device=device, spare=CPU)
            with exact_float32(), opened as reference:
                expected = ReferenceLogits.of(run_rows, reference, progress)
                dev = expected.rows.dev.expected.part(0, len(run_rows.dev))
                check_reference(run_rows, reference, dev, progress)
                checker = ParityChecker(run_rows, expected, progress)
                names = _build_all(locked, variants, checker, builder, progress)
        ranked = rank(run_rows, locked.manifest, progress)
        locked.record_engines(ranked)
        return tuple(record for record in ranked if record.name in names)
    finally:
        remove_unrecorded(locked, NullProgress())


def _prepare(locked: LockedRun, settings: ExportSettings, progress: Progress) -> None:
    """Check the files of the model, and choose when it gives no label."""
    run, manifest = locked.folder, locked.manifest
    verify_files(run, (manifest.input.tokenizer, *manifest.model.checkpoint))
    remove_unrecorded(locked, progress)
    if settings.windows.given:
        set_windows(locked, settings, progress)
    if settings.decision.given:
        if not settings.rebuild:
            message = "decision.* needs engines that are proven with it, found rebuild=false"
            raise ConfigError(message, "leave out rebuild=false")
        decide(locked, settings.decision, progress)
    if manifest.cascade is not None and locked.manifest.cascade is None:
        progress.note("the cascade is removed, because the answers change: export it again")
    if manifest.data.failures:
        progress.note(f"{run}: {manifest.data.failures[0]}")


def _build_all(
    locked: LockedRun,
    variants: Sequence[Variant],
    checker: ParityChecker,
    builder: EngineBuilder,
    progress: Progress,
) -> list[str]:
    """Build and record each variant; a failure does not stop the other variants.

    Returns:
        The names of the recorded engines.

    Raises:
        PipeError: all variants failed; this is the error of the last.
    """
    names, failed, total = list[str](), list[str](), len(variants)
    speed_s, start = checker.run_rows.settings.speed_s, time.monotonic()
    for number, variant in enumerate(variants, start=1):
        left = time_left(time.monotonic() - start, number - 1, total, speed_s)
        progress.note(f"building {variant.label} ({number} of {total}{left})")
        try:
            record = build_checked(variant, checker, builder, progress)
            others = (engine for engine in locked.manifest.engines if engine.name != record.name)
            locked.record_engines((*others, record))
            names.append(record.name)
        except (PipeError, *RUNTIME_ERRORS) as error:
            engines = locked.manifest.engines
            if any(engine.name == variant.label for engine in engines):
                progress.note(f"{variant.label}: the engine of an earlier export stays recorded")
                locked.record_engines(
                    engine.model_copy(update={"failure": str(error)})
                    if engine.name == variant.label
                    else engine
                    for engine in engines
                )
            if not names and number == total:
                raise
            failed.append(variant.label)
            hint = f"; {error.hint}" if isinstance(error, PipeError) and error.hint else ""
            progress.note(f"failed: {variant.label}: {error}{hint}")
    if failed:
        progress.note(f"{len(failed)} of {total} failed: {', '.join(failed)}")
    return names
