"""Export a run: build engines, check their parity, and record those that pass."""

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipework.errors import ChangedFileError, CheckFailedError, PipeError, RunFolderError
from pipework.export.build import (
    BuildResult,
    EngineBuilder,
    build,
    build_float_engine,
    disk_space,
    float_variant,
    lost_fusions,
)
from pipework.export.config import ExportSettings
from pipework.export.diagnosis.refusal import (
    EngineCandidate,
    engine_error,
    parity_error,
    remove_failed_export,
)
from pipework.export.parity.case import EngineFailedError
from pipework.export.parity.prove import ReferenceLogits, prove
from pipework.export.parity.score_change import check_reference
from pipework.export.plan import recorded_names, time_left
from pipework.export.ranking import ENGINES, rank, remove_unrecorded
from pipework.export.rows.run_rows import RunRows, spread_over_groups
from pipework.progress import NullProgress, Progress
from pipework.run_folder.engine_record import (
    EngineFormat,
    EngineRecord,
    Layout,
    Parity,
    Precision,
    Tolerance,
    Variant,
    engine_digest,
)
from pipework.run_folder.files import FileRecord, file_digest, record_file, verify_files
from pipework.run_folder.manifest import LockedRun, Manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE, ReferenceRows
from pipework.serve.engines import MODELS, open_engine
from pipework.serve.engines.base import CollatedEngine
from pipework.serve.engines.cuda import NoGpuError
from pipework.tasks.outputs import Outputs
from pipework.train.loop.determinism import exact_float32
from pipework.train.model.checkpoint_engine import CPU, open_reference, reference_device

UNFINISHED = "partial"
REFERENCE_DEV_ROWS = 256  # large enough that a single changed label is within tolerance
RUNTIME_ERRORS = (RuntimeError, MemoryError)  # raised by runtimes during a build
ONNX_FP32 = Variant(format=EngineFormat.ONNX, precision=Precision.FP32, layout=Layout.PADDED)


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
        DataError: the dev rows for the parity check are missing.
    """
    # A checked engine is renamed to its digest, and the engine that it replaces is deleted after
    # the manifest is updated: the manifest never records an incomplete or unchecked engine.
    run, manifest = locked.folder, locked.manifest
    verify_files(run, (manifest.input.tokenizer, *manifest.model.checkpoint))
    remove_unrecorded(locked, progress)
    settings = settings or ExportSettings()
    if settings.rebuild and len(variants) > 1:
        labels = ", ".join(variant.label for variant in variants)
        progress.note(f"{len(variants)} engines to build and measure: {labels}")
    names = [] if settings.rebuild else recorded_names(run, manifest, variants)
    run_rows = RunRows.open(run, manifest, settings)
    try:
        if settings.rebuild:
            device = reference_device(torch.cuda.device_count())
            opened = open_reference(run, manifest, device=device, spare=CPU)
            with exact_float32(), opened as reference:
                expected = ReferenceLogits.of(run_rows, reference, progress)
                check_reference(run_rows, reference, expected.dev, progress)
                checker = ParityChecker(run_rows, expected, progress)
                names = _build_all(locked, variants, checker, builder, progress)
        ranked = rank(run_rows, locked.manifest, progress)
        locked.record_engines(ranked)
        return tuple(record for record in ranked if record.name in names)
    finally:
        remove_unrecorded(locked, NullProgress())


def _build_all(
    locked: LockedRun,
    variants: Sequence[Variant],
    checker: "ParityChecker",
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
            record = _build_one(variant, checker, builder, progress)
            others = (engine for engine in locked.manifest.engines if engine.name != record.name)
            locked.record_engines((*others, record))
            names.append(record.name)
        except (PipeError, *RUNTIME_ERRORS) as error:
            if not names and number == total:
                raise
            failed.append(variant.label)
            hint = f"; {error.hint}" if isinstance(error, PipeError) and error.hint else ""
            progress.note(f"failed: {variant.label}: {error}{hint}")
    if failed:
        progress.note(f"{len(failed)} of {total} failed: {', '.join(failed)}")
    return names


def _build_one(
    variant: Variant, checker: "ParityChecker", builder: EngineBuilder, progress: Progress
) -> EngineRecord:
    run_rows = checker.run_rows
    folder = run_rows.run / ENGINES / variant.label / UNFINISHED
    if variant.precision is not Precision.FP32:
        checker.raise_known_fault(variant)
    folder.mkdir(parents=True)
    with disk_space(folder, run_rows.manifest):
        check = partial(checker.check_float_graph, variant)
        built = builder(variant, run_rows, folder, check, progress)
    _compare_fusions(variant, run_rows.manifest, built, progress)
    candidate = EngineCandidate(
        run_rows=run_rows, variant=variant, folder=folder, int8_layers=built.layers.int8
    )
    path, manifest = folder / MODELS[variant.format], run_rows.manifest
    opener = partial(open_engine, path, variant, manifest, tensorrt=built.tensorrt)
    parity: Parity | None
    try:
        parity = checker.check(candidate, opener, built.float_digest)
    except NoGpuError as reason:
        if built.graph is None:
            raise
        # Without the GPU, check the ONNX graph instead: it runs on any machine.
        onnx_variant = variant.model_copy(update={"format": EngineFormat.ONNX})
        opener = partial(open_engine, built.graph, onnx_variant, manifest)
        checker.check(candidate, opener, built.float_digest)
        parity = None
        progress.note(f"built, not run: {variant.label}; its ONNX graph passed; {reason}")
    if built.graph is not None:
        built.graph.unlink()
    checker.reference_rows().write(folder / REFERENCE_ROWS_FILE)
    return _record(variant, checker, built, parity)


def _compare_fusions(
    variant: Variant, manifest: Manifest, built: BuildResult, progress: Progress
) -> None:
    previous = next((old for old in manifest.engines if old.name == variant.label), None)
    for loss in () if previous is None else lost_fusions(previous.fusions, built.fusions):
        progress.note(f"{variant.label}: fewer fusions than in the last export: {loss}")


class ParityChecker:
    """Checks the engines of one export against the checkpoint.

    A lower precision hides faults of the float32 graph that it is converted from, so this graph is
    checked first, with the limits of float32: with OpenVINO for its engines, which OpenVINO
    compiles from a converted graph, else with onnxruntime. Graphs with the same content are checked
    once; the error of a wrong graph is raised for each engine.

    Attributes:
        run_rows: the run and the rows.
    """

    def __init__(self, run_rows: RunRows, expected: ReferenceLogits, progress: Progress) -> None:
        self.run_rows = run_rows
        self._expected = expected
        self._progress = progress
        self._graphs: dict[tuple[str, str], CheckFailedError | None] = {}
        self._faults: dict[str, CheckFailedError] = {}

    def tolerance(self, variant: Variant, int8_layers: frozenset[str]) -> Tolerance:
        """Return the limits of an engine with these layers in int8."""
        return self._expected.tolerance(self.run_rows, variant, int8_layers)

    def check(
        self, candidate: EngineCandidate, opener: Callable[..., CollatedEngine], float_digest: str
    ) -> Parity:
        """Return the parity record of an engine that passes the check.

        Args:
            candidate: the engine.
            opener: opens it.
            float_digest: digest of the float32 graph that it was made from.

        Raises:
            CheckFailedError: the engine's logits differ from the checkpoint's, or it fails.
            NoGpuError: the engine needs a GPU that is not available.
        """
        if candidate.variant.precision is not Precision.FP32:
            return self._check(candidate, opener)
        label = candidate.variant.label
        try:
            parity = self._check(candidate, opener)
        except CheckFailedError as error:
            self._graphs[label, float_digest] = self._faults[label] = error
            raise
        self._graphs[label, float_digest] = None  # only now: another error is not a result
        return parity

    def _check(self, candidate: EngineCandidate, opener: Callable[..., CollatedEngine]) -> Parity:
        try:
            with opener(whole=True) as whole, opener() as engine:
                result = prove(
                    self.run_rows,
                    self._expected,
                    whole=whole,
                    engine=engine,
                    tolerance=self.tolerance(candidate.variant, candidate.int8_layers),
                    progress=self._progress,
                )
                processor = engine.processor
        except (EngineFailedError, RunFolderError) as error:  # it does not load or run
            raise engine_error(candidate, error) from error
        if not result.parity.passed:
            raise parity_error(candidate, result)
        remove_failed_export(candidate)
        return result.parity.model_copy(update={"processor": processor})

    def raise_known_fault(self, variant: Variant) -> None:
        """Raise the error of the float32 graph if it has failed for the same format and layout."""
        if fault := self._faults.get(float_variant(variant).label):
            raise fault

    def check_float_graph(self, variant: Variant, graph: Path) -> None:
        """Check the float32 graph that `variant` will be converted from.

        Raises:
            CheckFailedError: its logits differ from the checkpoint's, or it fails.
        """
        digest, checked = file_digest(graph), float_variant(variant)
        if (checked.label, digest) not in self._graphs:
            self._progress.note(
                f"{variant.label}: checking the float32 graph before it is converted"
            )
            folder = self.run_rows.run / ENGINES / checked.label / "float-graph"
            folder.mkdir(parents=True)
            candidate = EngineCandidate(run_rows=self.run_rows, variant=checked, folder=folder)
            try:
                path = build_float_engine(checked, graph, folder)
                opener = partial(open_engine, path, checked, self.run_rows.manifest)
                self.check(candidate, opener, digest)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        if fault := self._graphs[checked.label, digest]:
            raise fault

    def reference_rows(self) -> ReferenceRows:
        """Return the edge cases and dev rows of all labels and lengths, with their logits."""
        expected, dev = self._expected, self.run_rows.dev
        labels_RC = self.run_rows.manifest.task.predicted_labels(expected.dev.values)
        labels = Outputs(labels_RC.astype(np.float32), expected.dev.offsets)
        chosen = spread_over_groups(
            [labels.part(row, row + 1).values.tobytes() for row in range(len(dev))],
            [len(row.encoding) for row in dev],
            REFERENCE_DEV_ROWS,
        )
        rows = [*self.run_rows.edge_cases, *(dev[index] for index in chosen)]
        return ReferenceRows(
            encodings=[row.encoding for row in rows],
            outputs=Outputs.concatenate([expected.edge, expected.dev.take(chosen)]),
        )


def _record(
    variant: Variant, checker: ParityChecker, built: BuildResult, parity: Parity | None
) -> EngineRecord:
    run = checker.run_rows.run
    partial_folder = run / ENGINES / variant.label / UNFINISHED
    checked = tuple(record_file(run, path) for path in _files(partial_folder, variant))
    final = partial_folder.with_name(engine_digest(checked)[:12])
    files = tuple(_moved(file, final.relative_to(run)) for file in checked)
    if _is_intact(run, files):  # the same engine with the same rows; the manifest may name it
        shutil.rmtree(partial_folder)
    else:
        shutil.rmtree(final, ignore_errors=True)  # damaged since an earlier export
        partial_folder.rename(final)
    return EngineRecord(
        **variant.model_dump(),
        name=variant.label,
        files=files,
        opset=built.opset,
        built_with=built.built_with,
        fusions=built.fusions,
        kept=built.layers.fallback,
        tensorrt=built.tensorrt,
        parity=parity,
        tolerance=checker.tolerance(variant, built.layers.int8),
    )


def _moved(file: FileRecord, folder: Path) -> FileRecord:
    return file.model_copy(update={"path": str(folder / Path(file.path).name)})


def _is_intact(run: Path, files: tuple[FileRecord, ...]) -> bool:
    try:
        verify_files(run, files)
    except ChangedFileError:
        return False
    return True


def _files(folder: Path, variant: Variant) -> list[Path]:
    """Return the files of an engine, the main one first."""
    main = folder / MODELS[variant.format]
    return [main, *sorted(path for path in folder.iterdir() if path != main)]
