"""Build an engine, check its parity, and record the files that were checked."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from pipework.errors import ChangedFileError, CheckFailedError
from pipework.export.build import FLOAT_GRAPH, BuildResult, EngineBuilder, disk_space
from pipework.export.convert.converter import GRAPH
from pipework.export.convert.converters import converter_of
from pipework.export.convert.fusions import lost_fusions
from pipework.export.diagnosis.refusal import EngineCandidate, engine_error
from pipework.export.parity_checker import ParityChecker
from pipework.export.quantize.conversion_check import check_conversion
from pipework.export.ranking import ENGINES
from pipework.progress import Progress
from pipework.run_folder.engine_record import (
    EngineRecord,
    Parity,
    Precision,
    Variant,
    engine_digest,
)
from pipework.run_folder.files import FileRecord, record_file, sync, verify_files
from pipework.run_folder.manifest import Manifest
from pipework.scoring.reference_rows import REFERENCE_ROWS_FILE
from pipework.serve.engines import open_engine
from pipework.serve.engines.cuda import NoGpuError
from pipework.serve.engines.onnxruntime import OnnxRuntime
from pipework.serve.engines.runtimes import runtime_of

UNFINISHED = "partial"


def build_checked(
    variant: Variant, checker: ParityChecker, builder: EngineBuilder, progress: Progress
) -> EngineRecord:
    """Build an engine and return its record, which names the files that were checked.

    An engine that cannot run here is recorded without a result if its ONNX graph passes.

    Raises:
        CheckFailedError: the engine did not pass the parity check.
        PipeError: it cannot be built.
    """
    run_rows = checker.run_rows
    folder = run_rows.run / ENGINES / variant.label / UNFINISHED
    if variant.precision is not Precision.FP32:
        checker.raise_known_fault(variant)
    folder.mkdir(parents=True)
    with disk_space(folder, run_rows.manifest):
        check = partial(checker.check_float_graph, variant)
        result = builder(variant, run_rows, folder, check, progress)
    _compare_fusions(variant, run_rows.manifest, result, progress)
    candidate = EngineCandidate(
        run_rows=run_rows, variant=variant, folder=folder, int8_layers=result.int8_layers
    )
    path, graph = folder / runtime_of(variant.format).model_file, folder / GRAPH
    _check_conversion(candidate, path)
    opener = partial(open_engine, path, variant, run_rows.manifest, built=result.built)
    parity: Parity | None
    try:
        parity = checker.check(candidate, opener, result.float_digest)
    except NoGpuError as reason:
        if not graph.is_file():
            raise
        # Without the GPU, check the ONNX graph instead: it runs on any machine.
        of_graph = variant.model_copy(update={"format": OnnxRuntime.format})
        opener = partial(open_engine, graph, of_graph, run_rows.manifest)
        checker.check(candidate, opener, result.float_digest)
        parity = None
        progress.note(f"built, not run: {variant.label}; its ONNX graph passed; {reason}")
    graph.unlink(missing_ok=True)
    checker.reference_rows().write(folder / REFERENCE_ROWS_FILE)
    return _record(variant, checker, result, parity)


def _check_conversion(candidate: EngineCandidate, path: Path) -> None:
    """Check that an engine differs from its float32 graph only by the conversion of precision.

    Raises:
        CheckFailedError: it differs otherwise.
    """
    plain = candidate.folder / FLOAT_GRAPH
    if not plain.is_file():  # the engine is in float32
        return
    converter = converter_of(candidate.variant.format)
    with tempfile.TemporaryDirectory(prefix="float-", dir=candidate.folder) as name:
        source = converter.structure(converter.write_graph(plain, Path(name), Precision.FP32))
    graph = candidate.folder / GRAPH
    engine = converter.structure(graph if graph.is_file() else path)
    try:
        check_conversion(source, engine)
    except CheckFailedError as error:
        raise engine_error(candidate, error) from error
    plain.unlink()


def _compare_fusions(
    variant: Variant, manifest: Manifest, result: BuildResult, progress: Progress
) -> None:
    previous = next((old.built for old in manifest.engines if old.name == variant.label), None)
    losses = [] if previous is None else lost_fusions(previous.fusions, result.built.fusions)
    for loss in losses:
        progress.note(f"{variant.label}: fewer fusions than in the last export: {loss}")


def _record(
    variant: Variant, checker: ParityChecker, result: BuildResult, parity: Parity | None
) -> EngineRecord:
    """Rename the folder of a checked engine to its digest and return its record."""
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
    # The files must be on the disk before the manifest names them.
    for path in (*final.iterdir(), final, final.parent, final.parent.parent, run):
        sync(path)
    return EngineRecord(
        **variant.model_dump(),
        name=variant.label,
        files=files,
        built=result.built,
        parity=parity,
        tolerance=checker.tolerance(variant, result.int8_layers),
        subject=checker.run_rows.manifest.subject,
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
    main = folder / runtime_of(variant.format).model_file
    return [main, *sorted(path for path in folder.iterdir() if path != main)]
