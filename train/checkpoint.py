"""The checkpoint folder of a run: replaced whole, or not at all."""

import shutil
from pathlib import Path

from transformers import PreTrainedModel

from pipework.manifest import FileRecord, record_file

FOLDER = "checkpoint"


def save(model: PreTrainedModel, run: Path) -> None:
    """Write weights (safetensors) and config to RUN/checkpoint by way of a folder beside it."""
    partial, final = run / f"{FOLDER}.partial", run / FOLDER
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)


def records(run: Path) -> tuple[FileRecord, ...]:
    """Describe the files of RUN/checkpoint."""
    return tuple(record_file(run, path) for path in sorted((run / FOLDER).iterdir()))
