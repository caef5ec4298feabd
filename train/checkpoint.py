"""The checkpoint folder of a run: replaced whole, or not at all."""

import shutil
from pathlib import Path

from pipework.manifest import FileRecord, record_file
from train.model import Classifier

FOLDER = "checkpoint"


def save(model: Classifier, run: Path) -> None:
    """Write weights (safetensors) and config to RUN/checkpoint by way of a folder beside it."""
    partial, final = run / f"{FOLDER}.partial", run / FOLDER
    shutil.rmtree(partial, ignore_errors=True)
    model.save(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)


def records(run: Path) -> tuple[FileRecord, ...]:
    """Describe the files of RUN/checkpoint."""
    return tuple(record_file(run, path) for path in sorted((run / FOLDER).iterdir()))
