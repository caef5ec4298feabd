"""Record the files of a checked engine in the run folder."""

import shutil
from pathlib import Path

from pipework.errors import ChangedFileError
from pipework.export.build import BuildResult
from pipework.export.parity_checker import ParityChecker
from pipework.export.ranking import ENGINES
from pipework.run_folder.engine_record import EngineRecord, Parity, Variant, engine_digest
from pipework.run_folder.files import FileRecord, record_file, verify_files
from pipework.serve.engines.runtimes import runtime_of

UNFINISHED = "partial"


def record_engine(
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
    return EngineRecord(
        **variant.model_dump(),
        name=variant.label,
        files=files,
        built=result.built,
        parity=parity,
        tolerance=checker.tolerance(variant, result.int8_layers),
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
