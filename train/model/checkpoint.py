"""The checkpoint folder of a run."""

import shutil
from pathlib import Path

from pipework.run_folder.files import FileRecord, record_file

FOLDER = "checkpoint"


def promote(weights: Path, run: Path) -> None:
    """Rename a folder of weights to RUN/checkpoint, unless an interrupted run did so before."""
    final = run / FOLDER
    if weights.is_dir():
        shutil.rmtree(final, ignore_errors=True)
        weights.rename(final)


def records(run: Path) -> tuple[FileRecord, ...]:
    """Return path and digest of each file of RUN/checkpoint."""
    return tuple(record_file(run, path) for path in sorted((run / FOLDER).iterdir()))
