"""The contract of a run folder: what it holds, with digests, written last and atomically.

A run folder is complete when its `manifest.json` exists. A stage adds to it and never edits what
another stage wrote.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from pipework.errors import RunFolderError
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.files import FILE_NAME, FileRecord, Record, write_atomically
from pipework.run_folder.task import Loss, Metric, Task, TaskKind, no_classifier

SCHEMA_VERSION, OLD_ENGINES = 3, 2


class Identity(Record):
    """Which run this is and what made it."""

    name: str
    created_at: datetime
    pipework: str
    git_commit: str | None
    seed: int


class Input(Record):
    """What a text becomes before the model: fields, tokenizer, limits, padding."""

    fields: tuple[str, ...]
    tokenizer: FileRecord
    max_length: int
    pad_id: int
    type_ids: bool
    pad_type_id: int = 0
    pad_left: bool = False

    @property
    def marked(self) -> bool:
        """Whether an input is a text with two marked entities."""
        return "entities" in self.fields

    @property
    def pair(self) -> bool:
        """Whether an input is two texts."""
        return "text_pair" in self.fields


class Model(Record):
    """The checkpoint: family and head by their usual names, files with digests."""

    family: str
    head: str
    base: str | None
    parameters: int
    dtype: str
    checkpoint: tuple[FileRecord, ...]

    @property
    def takes_spans(self) -> bool:
        """Whether its head reads the places of the two entities, beside the marks in the text."""
        return self.head == "entity"


class Part(Record):
    """A part of a file: the `rows` rows that `seed` holds out of it, or all others.

    Which rows these are depends on the seed and on their texts, not on their order.
    """

    rows: int
    seed: int
    held_out: bool


class Split(Record):
    """A data file, or a part of one, as it was read: its path, digest and rows.

    The path lies outside the run folder; the digest is of the whole file.
    """

    path: str
    sha256: str
    rows: int
    part: Part | None = None


class Reading(Record):
    """How the data files are read: columns by name or by number from 0, format, header or not.

    `entities` is the key of two character spans, [[start, end], [start, end]]; `marked` says that
    the text itself marks them with <e1>..</e1> and <e2>..</e2>. `separator` stands between the
    labels of a row with several, and `kind` says what a label is: one, several, or a number.
    """

    text: str | int
    text_pair: str | int | None
    label: str | int | None
    format: Literal["csv", "tsv", "jsonl", "semeval", "text", "documents"]
    header: bool
    entities: str | int | None = None
    marked: bool = False
    separator: str | None = None
    kind: TaskKind = TaskKind.SINGLE_LABEL


class Metrics(Record):
    """What the checkpoint scored on a split; `losses` are of pretraining."""

    rows: int
    scores: dict[Metric, float]
    losses: dict[Loss, float] = Field(default_factory=dict)


class Baseline(Record):
    """A simple model on the same train rows, scored on dev.

    `low` and `high` bound, with 95 % confidence, how much better the checkpoint scores by the
    task's metric.
    """

    name: str
    rows: int
    scores: dict[Metric, float]
    low: float
    high: float


class Data(Record):
    """What was learned from and what it gave, by split name."""

    reading: Reading
    splits: dict[str, Split]
    findings: tuple[str, ...]
    metrics: dict[str, Metrics]
    baseline: Baseline | None = None


class Manifest(Record):
    """All that a stage needs to know of a run folder."""

    schema_version: int = SCHEMA_VERSION
    identity: Identity
    task: Task
    input: Input
    model: Model
    data: Data
    engines: tuple[EngineRecord, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _without_old_engines(cls, read: Any) -> Any:  # noqa: ANN401  (what the file holds)
        # Schema 2 differs in its engines only, and an engine can be made again.
        if isinstance(read, dict) and read.get("schema_version") == OLD_ENGINES:
            return read | {"schema_version": SCHEMA_VERSION, "engines": []}
        return read


def read_manifest(run: Path) -> Manifest:
    """Read a run folder's manifest.

    Raises:
        RunFolderError: the folder is missing or unfinished, or the file is not a manifest.
    """
    path = run / FILE_NAME
    if not run.is_dir():
        message = f"{run} is not a folder; expected the run folder that `pipe train` wrote"
        raise RunFolderError(message, "check the path, or train first: pipe train sample --out RUN")
    if not path.is_file():
        message = f"{run} holds no {FILE_NAME}: not a run folder, or its training did not finish"
        raise RunFolderError(message, f"train again: pipe train CONFIG --out {run}")
    manifest = _parse(path.read_bytes(), path)
    if manifest.schema_version != SCHEMA_VERSION:
        message = (
            f"{path} has schema {manifest.schema_version}; this version reads {SCHEMA_VERSION}"
        )
        raise RunFolderError(message, "train and export again with this version")
    return manifest


def read_classifier(run: Path) -> Manifest:
    """Read the manifest of a run folder whose model answers.

    Raises:
        RunFolderError: as `read_manifest`; or the run is of pretraining.
    """
    manifest = read_manifest(run)
    if manifest.task.kind is TaskKind.PRETRAIN:
        raise no_classifier(str(run))
    return manifest


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write the manifest so that a reader sees the old one or the new one, never a part.

    Raises:
        RunFolderError: what was to be written could not be read again; the old one stays.
    """
    content = (manifest.model_dump_json(indent=2) + "\n").encode()
    _parse(content, run / FILE_NAME)
    write_atomically(run / FILE_NAME, content)


def _parse(content: bytes, path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"{path} is not a manifest of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        raise RunFolderError(message, "train and export again with this version") from error
