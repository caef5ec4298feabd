"""The manifest of a run folder: its contents with digests, written last and atomically.

A run folder is complete when its `manifest.json` exists. A stage adds to the manifest and never
changes the entries of another stage, except that an export may set when the task gives no label.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipework import __version__
from pipework.errors import ChangedFileError, RunFolderError
from pipework.git import CHECKOUT, git_commit
from pipework.record import Record
from pipework.run_folder.cascade import CascadeRecord
from pipework.run_folder.decision import AnyDecision
from pipework.run_folder.engine_record import EngineRecord, engine_digest
from pipework.run_folder.files import (
    MANIFEST_FILE,
    FileRecord,
    data_suffix,
    exclusive_lock,
    is_locked,
    write_atomically,
)
from pipework.run_folder.proof_subject import ProofSubject, settings_digest
from pipework.run_folder.read_options import Column, Format, ReadOptions
from pipework.run_folder.teacher_record import TeacherRecord
from pipework.tasks.evaluation import SplitMetrics
from pipework.tasks.kinds import Score
from pipework.tasks.logit_scale import LogitScale
from pipework.tasks.registry import AnyTask
from pipework.tasks.task import TargetScale, not_a_classifier
from pipework.tasks.windows import Windows

SCHEMA_VERSION = 6
CHECKED_FIELDS = {"head", "target_scale"}  # of Model, see ProofSubject


class Identity(Record):
    """The run's name, creation time, code version and seed; None if it was not trained here."""

    name: str
    created_at: datetime
    pipework: str
    git_commit: str | None
    seed: int | None

    @classmethod
    def new(cls, run: Path, seed: int | None) -> Self:
        """Return the identity of a run that this code makes now."""
        return cls(
            name=run.absolute().name,
            created_at=datetime.now(UTC),
            pipework=__version__,
            git_commit=git_commit(CHECKOUT),
            seed=seed,
        )


class Input(Record):
    """The input of the model: fields, tokenizer, maximum length, padding."""

    fields: tuple[str, ...]
    tokenizer: FileRecord
    max_length: Annotated[int, Field(ge=1)]
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
    """The checkpoint: model family, head, and files with digests.

    `kept` are the files of the checkpoints of `train.keep_every`, by name: step-300.
    `target_scale` is set for a regression, `calibration` for a model whose probabilities were
    calibrated. The checkpoint contains both, and so do engines; `kept` have no calibration.
    """

    family: str
    head: str
    base: str | None
    parameters: int
    dtype: str
    checkpoint: tuple[FileRecord, ...]
    kept: dict[str, tuple[FileRecord, ...]] = Field(default_factory=dict)
    target_scale: TargetScale | None = None
    calibration: LogitScale | None = None

    @property
    def takes_spans(self) -> bool:
        """Whether the head reads the token spans of the entities, not only the marks."""
        return self.head == "entity"


class Part(Record):
    """A part of a file: the `rows` rows held out by `seed` without the first `after`, or all other.

    The held-out rows depend on the seed and their texts, not on their order; `stratified` parts
    have each label in proportion. With `group`, a column, rows with the same value are held out
    together, so that there may be more than `rows`. Of this part, the rows are left out whose text
    is in one of the splits `without`; at most `limit` rows are taken from the rest, by their texts.
    """

    rows: int | None = None
    seed: int = 0
    held_out: bool = False
    stratified: bool = False
    group: Column | None = None
    after: int = 0
    without: tuple[str, ...] = ()
    limit: int | None = None


class Split(Record):
    """A data file, or a part of it, at training time: path, digest and number of rows.

    The path is outside the run folder; the digest covers the whole file. `kept` is a file in
    the run folder with all rows of dev or a sample of train, see `pipework.data.kept_rows`.
    """

    path: str
    sha256: str
    rows: int
    part: Part | None = None
    kept: FileRecord | None = None


class TrainingReadOptions(ReadOptions):
    """How the training data was read, and the suffix of its files, to read other files like it.

    The suffix is None if it is unknown. Fields that a newer server adds are ignored.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    suffix: str | None = None

    @classmethod
    def of(cls, data: "Data") -> Self:
        """Return the options of a run."""
        first = next(iter(data.splits.values()), None)  # None: an import without rows
        suffix = None if first is None else data_suffix(Path(first.path))
        return cls.model_validate({**data.reading.model_dump(), "suffix": suffix})

    @classmethod
    def of_inputs(cls, names: Collection[str]) -> Self:
        """Return the options for columns with the names of the inputs of a model."""
        pair = "text_pair" if "text_pair" in names else None
        return cls(text="text", text_pair=pair, label=None, format=Format.TSV, header=True)


class BaselineRecord(Record):
    """A simple model trained on the same rows, with its scores on a split: test, or else dev.

    `low` and `high` are the 95 % confidence interval of the checkpoint's gain over the baseline,
    by the task's metric.
    """

    name: str
    rows: int
    split: str
    scores: dict[Score, float]
    low: float
    high: float


class Data(Record):
    """The data of the run and the scores on it; splits and metrics by split name.

    `verdict` says in one sentence how good the model is; None for pretraining. `failures`: why the
    model is not better than a constant prediction; empty for a sound model.
    """

    reading: ReadOptions
    splits: dict[str, Split]
    findings: tuple[str, ...]
    metrics: dict[str, SplitMetrics]
    verdict: str | None = None
    failures: tuple[str, ...] = ()
    baseline: BaselineRecord | None = None
    teacher: TeacherRecord | None = None


class SourceKind(StrEnum):
    """The kind of the source of an imported model."""

    TRANSFORMERS = "transformers"
    CROSS_ENCODER = "cross-encoder"
    LORA = "LoRA adapter"
    ADAPTER = "adapter"  # of another type
    SETFIT = "SetFit"
    ONNX = "ONNX graph"
    TENSORFLOW = "TensorFlow 1"


class ImportRecord(Record):
    """The source of an imported model, and the comparison with it.

    Attributes:
        kind: the kind of source.
        source: the folder or hub id.
        revision: the commit of a hub id.
        program: the library that ran the source, and its version.
        rows: number of compared inputs.
        max_abs: the largest difference of a logit.
        custom_code: the digests of the Python files of the source that `--trust-remote-code`
            executed, by name. The run folder does not need them.
    """

    kind: SourceKind
    source: str
    revision: str | None
    program: str
    rows: int
    max_abs: float
    custom_code: dict[str, str] = Field(default_factory=dict)


class Manifest(Record):
    """The contents of a run folder; `imported` is set if the model was not trained here.

    `decision` is set if the model gives no label where its score is too low, or has intervals,
    `windows` if it reads the whole of longer texts, `cascade` if a first stage answers before an
    engine.
    """

    schema_version: int = SCHEMA_VERSION
    identity: Identity
    task: AnyTask
    input: Input
    model: Model
    data: Data
    imported: ImportRecord | None = None
    windows: Windows | None = None
    decision: AnyDecision | None = None
    cascade: CascadeRecord | None = None
    engines: tuple[EngineRecord, ...] = ()

    @property
    def may_have_windows(self) -> bool:
        """Whether an input is a single text, so that it can be read in windows."""
        return not (self.input.pair or self.input.marked)

    @model_validator(mode="after")
    def _windows_of_single_texts(self) -> Self:
        if self.windows and (self.cascade or not self.may_have_windows):
            message = "windows are for single texts, without a cascade: remove windows"
            raise ValueError(message)
        return self

    @property
    def subject(self) -> ProofSubject:
        """What an engine of this run is checked with."""
        checkpoint, labels = self.model.checkpoint, "\n".join(self.task.labels)
        return ProofSubject(
            checkpoint=engine_digest(checkpoint) if checkpoint else "",
            tokenizer=self.input.tokenizer.sha256,
            labels=hashlib.sha256(labels.encode()).hexdigest(),
            task=settings_digest(self.task, without={"labels"}),
            input=settings_digest(self.input, without={"tokenizer"}),
            model=settings_digest(self.model, without={*Model.model_fields} - CHECKED_FIELDS),
        )

    @property
    def current_engines(self) -> tuple[EngineRecord, ...]:
        """The engines that were made from this model as it is now."""
        subject = self.subject
        return tuple(one for one in self.engines if not one.subject.differing(subject))

    def check_current(self, engines: Iterable[EngineRecord]) -> None:
        """Check that engines were made from this model as it is now.

        Raises:
            ChangedFileError: the first that was not; the message names the parts that differ.
        """
        for engine in engines:
            if parts := engine.subject.differing(self.subject):
                message = (
                    f"engine {engine.name} was checked with another model than run "
                    f"{self.identity.name} has now: different {', '.join(parts)}"
                )
                if engine.subject == ProofSubject():
                    message = f"engine {engine.name} was recorded by an earlier version of pipework"
                options = f"--precision {engine.precision} --layout {engine.layout}"
                hint = f"export it again: pipe export RUN --to {engine.format} {options}"
                raise ChangedFileError(message, hint)


def read_manifest(run: Path) -> Manifest:
    """Read a run folder's manifest.

    Raises:
        RunFolderError: the folder is missing or unfinished, or the file is not a manifest.
    """
    _check_complete(run)
    path = run / MANIFEST_FILE
    return _parse(path.read_bytes(), path)


def _check_complete(run: Path) -> None:
    if not run.is_dir():
        message = f"{run} is not a folder; expected a run folder of `pipe train` or `import`"
        raise RunFolderError(message, "check the path, or train first: pipe train sample --out RUN")
    if (run / MANIFEST_FILE).is_file():
        return
    config = run / "config.toml"
    if config.is_file() and is_locked(run):
        message = f"{run} holds no {MANIFEST_FILE}: it is being trained"
        raise RunFolderError(
            message, f"wait until it has finished; {run}/report.html has its curves"
        )
    if config.is_file():
        message = f"{run} holds no {MANIFEST_FILE}: its training did not finish"
        hint = f"continue it: pipe train {config} --out {run} --resume"
        raise RunFolderError(message, hint)
    message = f"{run} holds no {MANIFEST_FILE}: not a run folder"
    raise RunFolderError(message, "expected a run folder of `pipe train` or `import`")


def read_classifier(run: Path) -> Manifest:
    """Read the manifest of a run folder with a classifier or regressor.

    Raises:
        RunFolderError: as `read_manifest`; or the run is a pretraining run.
    """
    manifest = read_manifest(run)
    if not manifest.task.predicts:
        raise not_a_classifier(str(run))
    return manifest


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically.

    Raises:
        RunFolderError: the new manifest is invalid; the old manifest is unchanged.
    """
    content = (manifest.model_dump_json(indent=2) + "\n").encode()
    _parse(content, run / MANIFEST_FILE)
    write_atomically(run / MANIFEST_FILE, content)


class LockedRun:
    """A run folder locked by this process, and its manifest.

    The manifest is read once: no other process changes it while the folder is locked.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> "Iterator[LockedRun]":
        """Lock the run folder of a classifier or regressor until the end of the block.

        Raises:
            RunFolderError: as `read_classifier`; or another process has locked the folder.
        """
        _check_complete(folder)  # a clear error if there is no run folder to lock
        with exclusive_lock(folder):
            yield cls(folder, read_classifier(folder))

    def record_engines(self, engines: Iterable[EngineRecord]) -> None:
        """Replace the engines in the manifest.

        Raises:
            RunFolderError: as `write_manifest`.
        """
        manifest = self.manifest.model_copy(update={"engines": tuple(engines)})
        write_manifest(self.folder, manifest)
        self.manifest = manifest

    def record_cascade(self, cascade: CascadeRecord | None) -> None:
        """Replace the cascade in the manifest.

        Raises:
            RunFolderError: as `write_manifest`.
        """
        manifest = self.manifest.model_copy(update={"cascade": cascade})
        write_manifest(self.folder, manifest)
        self.manifest = manifest

    def set_windows(self, windows: Windows | None) -> None:
        """Replace the windows in this object, and remove a cascade; `record_engines` writes it."""
        changed = {"windows": windows, "cascade": None}
        self.manifest = self.manifest.model_copy(update=changed)

    def set_decision(self, task: AnyTask, decision: AnyDecision | None) -> None:
        """Replace the task in this object; `record_engines` writes it with the engines for it.

        A cascade is removed, because it was proven with the former task.
        """
        changed = {"task": task, "decision": decision, "cascade": None}
        self.manifest = self.manifest.model_copy(update=changed)


class _AnyManifest(BaseModel):
    """The version of a manifest, whose other fields another version may have changed."""

    schema_version: int


def _parse(content: bytes, path: Path) -> Manifest:
    hint = "train and export again with this version"
    with suppress(ValidationError):
        schema = _AnyManifest.model_validate_json(content).schema_version
        if schema != SCHEMA_VERSION:
            message = f"{path} has schema {schema}; this version reads {SCHEMA_VERSION}"
            raise RunFolderError(message, hint)
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        message = f"{path} is not a manifest of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        raise RunFolderError(message, hint) from error
