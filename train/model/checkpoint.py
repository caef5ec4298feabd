"""The checkpoint folder of a run."""

import shutil
from pathlib import Path

from pipework.run_folder.files import FileRecord, record_file

FOLDER = "checkpoint"


def take(weights: Path, run: Path) -> None:
    """Make a folder of weights RUN/checkpoint, unless an interrupted end did so before."""
    final = run / FOLDER
    if weights.is_dir():
        shutil.rmtree(final, ignore_errors=True)
        weights.rename(final)


def records(run: Path) -> tuple[FileRecord, ...]:
    """Describe the files of RUN/checkpoint."""
    return tuple(record_file(run, path) for path in sorted((run / FOLDER).iterdir()))
