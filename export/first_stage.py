"""The run that becomes the first stage of a cascade, and the rows that prove it."""

import shutil
from pathlib import Path

from pipework.data.examples import Example
from pipework.data.other_files import other_source, unlabelled_source
from pipework.data.splits import split_source
from pipework.errors import ConfigError, DataError
from pipework.export.config import CascadeSettings
from pipework.run_folder.cascade import FOLDER
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.files import verify_files
from pipework.run_folder.manifest import (
    Manifest,
    TrainingReadOptions,
    read_classifier,
    write_manifest,
)
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.data import CALIBRATION


def check_first_stage(run: Path, manifest: Manifest, folder: Path) -> SingleLabelTask:
    """Check that a run can be the first stage of another, and return its task.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(manifest.task, SingleLabelTask) or manifest.task.rows_per_token:
        message = f"{run} has no single label for each text, so it cannot be in a cascade"
        raise ConfigError(message, "a cascade compares the labels of two models")
    if manifest.task.min_scores:
        message = f"{run} gives no label for low scores, which a cascade does not keep"
        raise ConfigError(message, f"first: pipe export {run} --to auto --set decision.min_score=0")
    if not folder.is_dir():
        message = f"{folder} is not a run folder, so there is no first stage"
        hint = f"pipe train CONFIG --set model.preset=linear --set model.vocab={run}/tokenizer.json"
        raise ConfigError(message, f"{hint}, then --first RUN")
    first = read_classifier(folder)
    task = first.task
    if not isinstance(task, SingleLabelTask) or task.labels != manifest.task.labels:
        message = f"{folder} has other labels than {run}"
        raise ConfigError(message, "train the first stage on the same data")
    same = first.input.tokenizer.sha256 == manifest.input.tokenizer.sha256
    if not same or first.input.max_length != manifest.input.max_length:
        message = f"{folder} has another tokenizer or max_length than {run}"
        hint = f"train it with model.vocab={run}/tokenizer.json and model.max_length="
        raise ConfigError(message, f"{hint}{manifest.input.max_length}")
    if first.input.type_ids and not manifest.input.type_ids:
        message = f"{folder} reads type ids, which {run} does not have"
        raise ConfigError(message, "use a first stage with model.preset=linear")
    return task


def proof_rows(
    run: Path, manifest: Manifest, settings: CascadeSettings
) -> tuple[list[Example], str]:
    """Return the rows that prove a cascade, and their name."""
    if settings.rows is not None:
        reading = TrainingReadOptions.of(manifest.data)
        try:
            rows = [*other_source(reading, settings.rows).rows()]
        except DataError:  # without labels; else this raises it again
            rows = [*unlabelled_source(reading, settings.rows).rows()]
        return rows, settings.rows.name
    split = CALIBRATION if CALIBRATION in manifest.data.splits else "dev"
    return [*split_source(run, manifest, split).rows()], split


def copy_first_stage(run: Path, folder: Path, manifest: Manifest, record: EngineRecord) -> None:
    """Copy the run of a first stage with one engine to RUN/first-stage."""
    target = run / FOLDER
    partial = target.with_name(f"{FOLDER}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    files = (manifest.input.tokenizer, *record.files)
    verify_files(folder, files)
    for file in files:
        (partial / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / file.path, partial / file.path)
    write_manifest(partial, manifest.model_copy(update={"engines": (record,)}))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
