"""The record of a finished run: its checkpoint folder, and its manifest, which is written last."""

import shutil
from pathlib import Path

from torch import nn

from pipework.data.kept_rows import CALIBRATION_ROWS, keep_rows, sample_evenly
from pipework.run_folder.files import record_file
from pipework.run_folder.manifest import (
    Data,
    Identity,
    Input,
    Manifest,
    Model,
    Split,
    write_manifest,
)
from pipework.tasks.task import Task
from pipework.text.padding import Padding
from pipework.train.data.disk_cache import data_file_digest
from pipework.train.data_report.records import DataReport
from pipework.train.loop import resume
from pipework.train.loop.loop import TrainingRun
from pipework.train.model import checkpoint
from pipework.train.run_folder import TOKENIZER


def best_weights(run: TrainingRun, state: resume.TrainState) -> Path:
    """Return the folder of the best weights; it is RUN/checkpoint if they were promoted before."""
    weights = resume.CheckpointManager(run.out, run.config.train.keep).best(state.best_step)
    return weights if weights.is_dir() else run.out / checkpoint.FOLDER


def promote(run: TrainingRun, weights: Path, padding: Padding) -> None:
    """Rename a folder of weights to RUN/checkpoint, and add the tokenizer."""
    checkpoint.promote(weights, run.out)
    checkpoint.add_tokenizer(run.out, _input(run, padding))


def new_manifest(
    run: TrainingRun, task: Task, padding: Padding, model: Model, data: Data
) -> Manifest:
    """Return the manifest of a run that is trained and scored."""
    identity = Identity.new(run.out, run.config.train.seed)
    return Manifest(
        identity=identity, task=task, input=_input(run, padding), model=model, data=data
    )


def finish(run: TrainingRun, manifest: Manifest) -> None:
    """Write the manifest, which makes the run complete, and delete what only resuming needs."""
    write_manifest(run.out, manifest)
    shutil.rmtree(run.out / resume.FOLDER, ignore_errors=True)


def model_record(run: TrainingRun, model: nn.Module, *, family: str, head: str) -> Model:
    """Return the record of the best checkpoint and of the checkpoints of `train.keep_every`.

    Its scales are those of a model without any.
    """
    return Model(
        family=family,
        head=head,
        base=run.config.model.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype="float32",
        checkpoint=checkpoint.records(run.out),
        kept=checkpoint.kept_records(run.out),
    )


def _input(run: TrainingRun, padding: Padding) -> Input:
    return Input(
        fields=run.config.data.fields,
        tokenizer=record_file(run.out, run.out / TOKENIZER),
        max_length=run.config.model.max_length,
        pad_id=padding.pad_id,
        type_ids=padding.type_ids,
        pad_type_id=padding.pad_type_id,
        pad_left=padding.left,
    )


def split_records(run: TrainingRun, report: DataReport, *, keep: bool) -> dict[str, Split]:
    """Return the data files by split name; with `keep`, copy the rows that the export needs."""
    sources = run.config.sources()
    records = {
        name: Split(
            path=str(source.path),
            sha256=data_file_digest(source.path),
            rows=report.splits[name].rows,
            part=source.part,
        )
        for name, source in sources.items()
    }
    if keep:
        sample = sample_evenly(sources["train"].rows(), records["train"].rows, CALIBRATION_ROWS)
        for name, rows in {"train": sample.values(), "dev": sources["dev"].rows()}.items():
            kept = keep_rows(run.out, name, rows)
            records[name] = records[name].model_copy(update={"kept": kept})
    return records
