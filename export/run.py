"""An export from run folder to recorded engines: build, prove, and only then record."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pipework.errors import PipeError, RunFolderError
from pipework.export.build import Build, Built, build
from pipework.export.config import ExportSettings
from pipework.export.convert.fusions import lost_fusions
from pipework.export.diagnosis.refusal import Trial, failure, forget, refusal
from pipework.export.parity.case import EngineFailedError
from pipework.export.parity.prove import Expected, prove
from pipework.export.parity.score_change import check_reference
from pipework.export.ranking import rank
from pipework.export.rows.run_rows import Subject
from pipework.progress import Progress, Silent
from pipework.run_folder.engine_record import (
    EngineFormat,
    EngineRecord,
    Layout,
    Parity,
    Precision,
    Variant,
    engine_digest,
)
from pipework.run_folder.files import record_file, sole_writer, verify_files
from pipework.run_folder.manifest import Manifest, read_classifier, read_manifest, write_manifest
from pipework.scoring.reference_rows import FILE_NAME as KEPT_ROWS
from pipework.scoring.reference_rows import KeptRows
from pipework.serve.engines import MODELS, open_engine
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.cuda import NoGpuError
from pipework.train.model.checkpoint_engine import open_reference

ENGINES, UNFINISHED = "engines", "partial"
KEPT_DEV_ROWS = 256
RUNTIME_ERRORS = (RuntimeError, MemoryError)  # what runtimes raise while they build
ONNX_FP32 = Variant(format=EngineFormat.ONNX, precision=Precision.FP32, layout=Layout.PADDED)


def export(
    run: Path,
    progress: Progress,
    variants: Sequence[Variant] = (ONNX_FP32,),
    *,
    settings: ExportSettings | None = None,
    building: Build = build,
) -> tuple[EngineRecord, ...]:
    """Build engines of a run, prove them, and record them in the manifest, the fastest first.

    An engine is built and proven in a folder of another name and gets the name that its digest
    gives only when it has passed; one that it replaces goes after the manifest names the new
    one. So at any moment each engine that the manifest records is whole and proven.

    Args:
        run: the run folder.
        progress: hears of the stages.
        variants: what to build.
        settings: how; None for the defaults.
        building: writes the files of an engine.

    Raises:
        CheckFailedError: every engine differs from the checkpoint. What differs is not recorded;
            the details say how, and RUN/failed-exports/LABEL shows it, see `pipework.export.diagnosis.refusal`.
        RunFolderError: the run folder does not hold what its manifest says.
        DataError: the dev rows that the proof needs are not there.
    """
    read_classifier(run)  # for its clear words, where there is no run to lock
    with sole_writer(run):
        manifest = read_manifest(run)
        verify_files(run, (manifest.input.tokenizer, *manifest.model.checkpoint))
        _sweep(run, manifest, progress)
        subject = Subject.open(run, manifest, settings or ExportSettings())
        try:
            with open_reference(run, manifest) as reference:
                expected = Expected.of(subject, reference, progress)
                check_reference(subject, reference, expected.dev_NC, progress)
            names = _each(variants, subject, expected, building, progress)
            return tuple(record for record in rank(subject, progress) if record.name in names)
        finally:
            _sweep(run, read_manifest(run), Silent())


def _each(
    variants: Sequence[Variant],
    subject: Subject,
    expected: Expected,
    building: Build,
    progress: Progress,
) -> list[str]:
    """Build and record what can be; of several, one that cannot does not stop the others.

    Returns:
        The names of those recorded.

    Raises:
        PipeError: of the last one, if none could be.
    """
    names: list[str] = []
    refused: list[str] = []
    for number, variant in enumerate(variants, start=1):
        progress.note(f"building {variant.label} ({number} of {len(variants)})")
        try:
            names.append(_one(variant, subject, expected, building, progress).name)
        except (PipeError, *RUNTIME_ERRORS) as error:
            if not names and number == len(variants):
                raise
            refused.append(variant.label)
            hint = f"; {error.hint}" if isinstance(error, PipeError) and error.hint else ""
            progress.note(f"refused: {variant.label}: {error}{hint}")
    if refused:
        progress.note(f"{len(refused)} of {len(variants)} refused: {', '.join(refused)}")
    return names


def _one(
    variant: Variant,
    subject: Subject,
    expected: Expected,
    building: Build,
    progress: Progress,
) -> EngineRecord:
    folder = subject.run / ENGINES / variant.label / UNFINISHED
    folder.mkdir(parents=True)
    built = building(variant, subject, folder, progress)
    _compare_fusions(variant, subject.manifest, built, progress)
    trial = Trial(subject=subject, variant=variant, folder=folder)
    path, manifest = folder / MODELS[variant.format], subject.manifest
    opened = partial(open_engine, path, variant, manifest, tensorrt=built.tensorrt)
    parity: Parity | None
    try:
        parity = _proof(trial, opened, expected, progress)
    except NoGpuError as reason:
        if built.graph is None:
            raise
        # None is recorded of a wrong graph, which can be run anywhere.
        as_graph = variant.model_copy(update={"format": EngineFormat.ONNX})
        _proof(trial, partial(open_engine, built.graph, as_graph, manifest), expected, progress)
        parity = None
        progress.note(f"built, not run: {variant.label}; its graph passed; {reason}")
    if built.graph is not None:
        built.graph.unlink()
    _kept(subject, expected).write(folder / KEPT_ROWS)
    return _record(variant, subject, built, parity)


def _kept(subject: Subject, expected: Expected) -> KeptRows:
    """Return the inputs of the grid, and so many of dev that one changed label is not too many."""
    dev = subject.dev[:KEPT_DEV_ROWS]
    logits_NC = np.concatenate([expected.grid_NC, expected.dev_NC[: len(dev)]])
    return KeptRows(encodings=[row.encoding for row in (*subject.grid, *dev)], logits_NC=logits_NC)


def _compare_fusions(
    variant: Variant, manifest: Manifest, built: Built, progress: Progress
) -> None:
    for before in manifest.engines:
        if before.name == variant.label:
            for loss in lost_fusions(before.fusions, built.fusions):
                progress.note(f"{variant.label}: fused less often than last time: {loss}")


def _proof(
    trial: Trial,
    opened: Callable[..., CollatedEngine],
    expected: Expected,
    progress: Progress,
) -> Parity:
    """Return the proof of an engine.

    Raises:
        CheckFailedError: it does not answer as the checkpoint does.
        NoGpuError: the GPU that it is for is not there.
    """
    try:
        with opened(whole=True) as whole, opened() as engine:
            verdict = prove(
                trial.subject,
                expected,
                whole=whole,
                engine=engine,
                tolerance=trial.subject.tolerance(trial.variant.precision),
                progress=progress,
            )
            ran_on = engine.processor
    except (EngineFailedError, RunFolderError) as error:  # it cannot even be asked
        raise failure(trial, error) from error
    if not verdict.parity.passed:
        raise refusal(trial, verdict)
    forget(trial)
    return verdict.parity.model_copy(update={"processor": ran_on})


def _record(
    variant: Variant, subject: Subject, built: Built, parity: Parity | None
) -> EngineRecord:
    run, unproven = subject.run, subject.run / ENGINES / variant.label / UNFINISHED
    files = tuple(record_file(run, path) for path in _files(unproven, variant))
    final = unproven.with_name(engine_digest(files)[:12])
    if final.is_dir():  # the same engine with the same rows, which the manifest may name
        shutil.rmtree(unproven)
    else:
        unproven.rename(final)
    record = EngineRecord(
        **variant.model_dump(),
        name=variant.label,
        files=tuple(record_file(run, path) for path in _files(final, variant)),
        opset=built.opset,
        built_with=built.built_with,
        fusions=built.fusions,
        kept=built.kept,
        tensorrt=built.tensorrt,
        parity=parity,
        tolerance=subject.tolerance(variant.precision),
    )
    manifest = read_manifest(run)
    others = tuple(engine for engine in manifest.engines if engine.name != record.name)
    write_manifest(run, manifest.model_copy(update={"engines": (*others, record)}))
    return record


def _files(folder: Path, variant: Variant) -> list[Path]:
    """Return the files of an engine, the main one first."""
    main = folder / MODELS[variant.format]
    return [main, *sorted(path for path in folder.iterdir() if path != main)]


def _sweep(run: Path, manifest: Manifest, progress: Progress) -> None:
    """Delete what lies under engines/ and no record names: an interrupted export left it."""
    kept = {run / file.path for engine in manifest.engines for file in engine.files}
    below = sorted((run / ENGINES).rglob("*"), reverse=True)  # what is in a folder before it
    for path in (*below, run / ENGINES):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in kept:
            progress.note(f"{path} is left from an unfinished export: removed")
            path.unlink()
