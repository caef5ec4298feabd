"""A run that becomes a head of a combined run: its checkpoint, and its rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import AutoConfig

from pipework.data.examples import Example
from pipework.data.kept_rows import CALIBRATION_ROWS, kept_source, sample_evenly
from pipework.data.splits import split_source
from pipework.errors import ConfigError, DataError
from pipework.export.importing.source_checks import is_decoder
from pipework.run_folder.manifest import Input, Manifest, read_classifier
from pipework.run_folder.read_options import Format, ReadOptions
from pipework.tasks.heads import HEAD_NAME, HeadTask
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.tasks.tokens import TokenTask
from pipework.train.config.model import LINEAR_FAMILY
from pipework.train.model import checkpoint
from pipework.train.model.checkpoint_engine import CheckpointEngine, open_reference

FEWEST = 2  # heads


@dataclass(frozen=True, kw_only=True, eq=False)
class RunHead:
    """A run that becomes a head.

    Attributes:
        run: its folder.
        manifest: its manifest.
        task: its task.
        engine: its checkpoint.
        dev: its dev rows, whose labels are JSON with the name of the head.
        train: some of its train rows, without labels.
    """

    run: Path
    manifest: Manifest
    task: HeadTask
    engine: CheckpointEngine
    dev: list[Example]
    train: list[Example]


def check_names(runs: Mapping[str, Path]) -> None:
    """Check that there are two heads or more, and their names.

    Raises:
        ConfigError: there are too few, or a name has other signs than letters, digits, - and _.
    """
    if len(runs) < FEWEST:
        message = f"expected two runs or more with different names, found {len(runs)}"
        raise ConfigError(message, "for example: pipe combine topic=runs/a names=runs/b --out RUN")
    for name in runs:
        if not HEAD_NAME.fullmatch(name):
            message = f"expected letters, digits, - and _ in the name of a head, found {name!r}"
            raise ConfigError(message, f"name it: pipe combine NAME={runs[name]} ...")


def open_head(name: str, run: Path, most: int) -> RunHead:
    """Open a run as the head of this name, with at most `most` dev rows.

    Raises:
        ConfigError: it cannot be a head.
        DataError: its dev rows are missing.
        RunFolderError: it cannot be read.
    """
    manifest = read_classifier(run)
    task = manifest.task
    reason = ""
    if not isinstance(task, SingleLabelTask | MultiLabelTask | TokenTask):
        reason = f"has the task {task.kind}; a head has one label, several labels, or spans"
    elif manifest.model.family == LINEAR_FAMILY:
        reason = "is a linear model, which has no encoder"
    elif is_decoder(AutoConfig.from_pretrained(run / checkpoint.FOLDER)):
        reason = "is a decoder, whose head cannot be computed from the states alone"
    elif manifest.model.takes_spans:
        reason = "has an entity head, which reads the places of the entities"
    elif manifest.windows is not None:
        reason = "reads longer texts in windows"
    elif "dev" not in manifest.data.splits or manifest.data.reading.label is None:
        reason = "has no labelled dev rows"
    if reason or not isinstance(task, SingleLabelTask | MultiLabelTask | TokenTask):
        message = f"{run} {reason}"
        raise ConfigError(message, "leave it out, or serve it as a model of its own")
    rows = [*split_source(run, manifest, "dev").rows()]
    sampled = sample_evenly(rows, len(rows), most).values()
    dev = [replace(row, label=_json_label(name, row)) for row in sampled]
    return RunHead(
        run=run,
        manifest=manifest,
        task=task,
        engine=open_reference(run, manifest),
        dev=dev,
        train=_train_rows(run, manifest),
    )


def _json_label(name: str, row: Example) -> str:
    return json.dumps({name: row.label}, ensure_ascii=False)


def _train_rows(run: Path, manifest: Manifest) -> list[Example]:
    """Return some train rows with the labels of no head, for the calibration of int8."""
    if "train" not in manifest.data.splits:
        return []
    try:
        source = split_source(run, manifest, "train")
        count = manifest.data.splits["train"].rows
        rows = [*sample_evenly(source.rows(), count, CALIBRATION_ROWS).values()]
    except DataError:
        kept = kept_source(run, manifest, "train")
        rows = [] if kept is None else [*kept.rows()]
    return [replace(row, label="{}") for row in rows]


def check_inputs(heads: Mapping[str, RunHead]) -> None:
    """Check that all heads read the same inputs.

    Raises:
        ConfigError: the first two that do not.
    """
    first, *others = heads.values()
    for other in others:
        pairs = (_input(first.manifest.input), _input(other.manifest.input))
        different = sorted(name for name in pairs[0] if pairs[0][name] != pairs[1][name])
        if different:
            message = f"{other.run} reads other inputs than {first.run}: {', '.join(different)}"
            hint = "train both with the same tokenizer, fields and model.max_length"
            raise ConfigError(message, hint)
    words = {head.task.tagged: head.run for head in heads.values() if head.task.rows_per_token}
    if len(words) > 1:
        found = " and ".join(f"{name} ({run})" for name, run in words.items())
        message = f"expected heads for spans of the same words, found {found}"
        raise ConfigError(message, "set task.words when they are trained")


def _input(form: Input) -> dict[str, object]:
    return {**form.model_dump(exclude={"tokenizer"}), "tokenizer": form.tokenizer.sha256}


def kept_reading(form: Input, kind: str) -> ReadOptions:
    """Return how the kept rows of a combined run are read."""
    return ReadOptions(
        text="text",
        text_pair="text_pair" if form.pair else None,
        label="label",
        format=Format.JSONL,
        header=True,
        kind=kind,
    )
