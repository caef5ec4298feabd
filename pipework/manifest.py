"""The contract of a run folder: what it holds, with digests, written last and atomically.

A run folder is complete when its `manifest.json` exists. A stage adds to it and never edits what
another stage wrote. Paths inside are relative to the folder and may not leave it.
"""

import hashlib
import os
from datetime import datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from pipework.errors import RunFolderError

FILE_NAME = "manifest.json"
SCHEMA_VERSION = 2


class TaskKind(StrEnum):
    """What the classifier decides."""

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"


class Metric(StrEnum):
    """A score over a split, by which a checkpoint is chosen; higher is better.

    `directional_f1` is the official score of SemEval-2010 task 8: the macro-F1 of the relations,
    directions told apart, without the class Other (Hendrickx et al. 2010,
    https://aclanthology.org/S10-1006).
    """

    ACCURACY = "accuracy"
    MACRO_F1 = "macro_f1"
    MICRO_F1 = "micro_f1"
    MATTHEWS = "matthews"
    DIRECTIONAL_F1 = "directional_f1"
    PEARSON = "pearson"
    SPEARMAN = "spearman"


class EngineFormat(StrEnum):
    """What an engine's file is, hence which runtime opens it."""

    ONNX = "onnx"


class Precision(StrEnum):
    """The arithmetic of an engine."""

    FP32 = "fp32"


class Layout(StrEnum):
    """How texts share a batch."""

    PADDED = "padded"


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path:
        message = f"{path!r} leaves the run folder"
        raise ValueError(message)
    return path


class Record(BaseModel):
    """A frozen group of fields; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(Record):
    """A file of the run folder, by relative path, with its size in bytes and SHA-256."""

    path: Annotated[str, AfterValidator(_inside)]
    sha256: str
    size: int


class Identity(Record):
    """Which run this is and what made it."""

    name: str
    created_at: datetime
    pipework: str
    git_commit: str | None
    seed: int


class Task(Record):
    """What is decided; `labels` are in the order of the logits.

    A regression has one logit, named "score". `thresholds` are of a multi-label task, one a label:
    a label is given where its probability reaches its threshold.
    """

    kind: TaskKind
    labels: tuple[str, ...]
    metric: Metric
    thresholds: tuple[float, ...] = ()


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
    format: Literal["csv", "tsv", "jsonl", "semeval"]
    header: bool
    entities: str | int | None = None
    marked: bool = False
    separator: str | None = None
    kind: TaskKind = TaskKind.SINGLE_LABEL


class Metrics(Record):
    """What the checkpoint scored on a split."""

    rows: int
    scores: dict[Metric, float]


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


class Parity(Record):
    """The proof that an engine answers as the checkpoint does.

    Differences are of logits, absolute, over all rows and shapes; `shapes` are the
    (batch, longest length) pairs of the padded batches that went through the graph; `flips` are
    the rows whose label changed.
    """

    reference: str
    rows: int
    shapes: tuple[tuple[int, int], ...]
    max_abs: float
    mean_abs: float
    argmax_agreement: float
    flips: int
    metric: Metric
    score_reference: float
    score_engine: float
    tolerance: float
    passed: bool


class EngineRecord(Record):
    """One proven engine."""

    name: str
    format: EngineFormat
    precision: Precision
    layout: Layout
    files: tuple[FileRecord, ...]
    opset: int
    built_with: dict[str, str]
    parity: Parity


class Manifest(Record):
    """All that a stage needs to know of a run folder."""

    schema_version: int = SCHEMA_VERSION
    identity: Identity
    task: Task
    input: Input
    model: Model
    data: Data
    engines: tuple[EngineRecord, ...] = ()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def record_file(run: Path, path: Path) -> FileRecord:
    """Describe a file that lies inside the run folder."""
    return FileRecord(
        path=path.relative_to(run).as_posix(), sha256=file_digest(path), size=path.stat().st_size
    )


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
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"{path} is not a manifest of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        raise RunFolderError(message, "train and export again with this version") from error
    if manifest.schema_version != SCHEMA_VERSION:
        message = (
            f"{path} has schema {manifest.schema_version}; this version reads {SCHEMA_VERSION}"
        )
        raise RunFolderError(message, "train and export again with this version")
    return manifest


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write the manifest so that a reader sees the old one or the new one, never a part."""
    text = manifest.model_dump_json(indent=2) + "\n"
    write_atomically(run / FILE_NAME, text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by way of a synced temporary file beside it."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def verify_files(run: Path, files: tuple[FileRecord, ...]) -> None:
    """Check that files are there and unchanged.

    Raises:
        RunFolderError: naming the first file that is missing or differs.
    """
    for record in files:
        path = run / record.path
        if not path.is_file():
            message = f"{path} is missing, although {FILE_NAME} records it"
            raise RunFolderError(message, "copy the run folder again, or export again")
        found = file_digest(path)
        if found != record.sha256:
            message = f"{path} changed: sha256 {found[:12]}, {FILE_NAME} says {record.sha256[:12]}"
            raise RunFolderError(message, "copy the run folder again, or export again")
