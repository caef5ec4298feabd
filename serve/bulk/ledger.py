"""The ledger of a bulk job: what is scored with what, and which work items are finished.

A job folder holds plan.json (model, engine, options, files and work items), parts/ with a parquet
file for each work item, rejects/ with the rows that could not be read, and finished/ with an entry
for each finished item. The entry is published after the part: a process that ends at any moment
leaves nothing unfinished that looks finished. Work items are independent, so that several
processes, also on several machines, may write to one folder.
"""

import hashlib
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from pydantic import Field, ValidationError

from pipework.errors import ChangedFileError, ConfigError
from pipework.record import Record
from pipework.run_folder.cascade import CascadeRecord
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.files import FileRecord
from pipework.serve.bulk.input_files import InputFile, WorkItem
from pipework.serve.bulk.job_folder import PARTS, PLAN, TEMPORARY, JobFolder
from pipework.serve.bulk.records import Reject
from pipework.serve.bulk.stored_files import StoredFile
from pipework.tasks.registry import AnyTask
from pipework.tasks.task import Task
from pipework.tasks.windows import Windows

REJECTS, FINISHED = "rejects", "finished"
FOLDERS = (PARTS, REJECTS, FINISHED)
OTHER = "use another --out folder"


class EngineIdentity(Record):
    """The engine of a job, with the digests of its files, and its proof.

    Attributes:
        max_abs_diff: largest difference of a logit from the checkpoint's, on `rows` rows; None
            without a recorded proof.
        cascade: the seal of the cascade that it is in; "" for the engine alone.
    """

    name: str
    files: tuple[str, ...]
    rows: int | None
    max_abs_diff: float | None
    cascade: str = ""

    @classmethod
    def of(cls, record: EngineRecord, cascade: CascadeRecord | None) -> "EngineIdentity":
        """Return the identity of a recorded engine, alone or in a cascade."""
        parity = record.parity
        return cls(
            name=record.name,
            files=tuple(file.sha256 for file in record.files),
            rows=None if parity is None else parity.rows,
            max_abs_diff=None if parity is None else parity.max_abs,
            cascade="" if cascade is None else cascade.seal,
        )


class BulkPlan(Record):
    """What a job scores, and with what.

    Attributes:
        model: name of the run.
        task: its labels and thresholds.
        tokenizer: digest of the tokenizer.
        windows: windows over longer texts.
        engine: the engine.
        columns: the columns of the texts.
        keep: the columns that are copied to the output.
        scores: whether each label has a column of its scores.
        files: the files.
        items: their work items.
    """

    model: str
    task: AnyTask
    tokenizer: str
    windows: Windows | None = None
    engine: EngineIdentity
    columns: tuple[str, ...]
    keep: tuple[str, ...]
    scores: bool = False
    files: tuple[InputFile, ...]
    items: tuple[WorkItem, ...]


class RowCounts(Record):
    """Numbers of rows: scored, rejected, scored but truncated, and scored by label.

    `reason` is the place of the first rejected row, and why it was not scored.
    """

    rows: int = 0
    rejected: int = 0
    truncated: int = 0
    labels: dict[str, int] = Field(default_factory=dict)
    reason: str = ""

    def __add__(self, other: "RowCounts") -> "RowCounts":
        """Return the sums."""
        labels = Counter(self.labels) + Counter(other.labels)
        return RowCounts(
            rows=self.rows + other.rows,
            rejected=self.rejected + other.rejected,
            truncated=self.truncated + other.truncated,
            labels=dict(sorted(labels.items())),
            reason=self.reason or other.reason,
        )


class FinishedItem(Record):
    """The entry of a finished work item.

    Attributes:
        plan_sha256: digest of the plan of the job.
        input_sha256: digest of the bytes of the item.
        input_version: version of its file in an object store, see `StoredFile`; None on a disk,
            where the bytes are read again.
        part: its part.
        rejects: the file with its rejected rows; None if there are none.
        counts: numbers of its rows.
    """

    plan_sha256: str
    input_sha256: str | None
    input_version: str | None
    part: FileRecord
    rejects: FileRecord | None
    counts: RowCounts


class Ledger:
    """The ledger in a job folder.

    Attributes:
        folder: the folder.
        plan: the plan of the job.
        plan_sha256: its digest.
    """

    def __init__(self, folder: JobFolder, plan: BulkPlan) -> None:
        """Start a job in a folder, or continue a job with the same plan.

        Raises:
            ConfigError: the folder belongs to a job with another model, engine, option or input,
                holds other files, or cannot be used.
        """
        self.folder = folder
        self.plan = plan
        self.plan_sha256 = hashlib.sha256(plan.model_dump_json().encode()).hexdigest()
        # In this order: another process may write the plan, and after that its parts.
        foreign = not folder.names() <= {*FOLDERS, TEMPORARY} or folder.names(FINISHED)
        if foreign and folder.read(PLAN) is None:
            message = f"{folder.name} holds files and no {PLAN}: expected a new folder, or a job's"
            raise ConfigError(message, OTHER)
        folder.prepare(FOLDERS)
        if folder.read(PLAN) is None:
            with folder.new_file(PLAN) as file:
                file.stream.write(plan.model_dump_json(indent=1).encode())
                file.finish(first=True)
        self.check(plan)

    def check(self, plan: BulkPlan) -> None:
        """Compare the plan of the folder with the plan of this process, also on another machine.

        Raises:
            ConfigError: it has another plan, or none.
        """
        content = self.folder.read(PLAN)
        name = self.folder.name
        if content is None:
            message = f"{name} has no {PLAN} on {platform.node()}, a node of the cluster"
            raise ConfigError(message, "--out must be the same folder on all nodes")
        try:
            known = BulkPlan.model_validate_json(content)
        except ValidationError as error:
            message = f"{name}/{PLAN} is not the plan of a bulk job of this version"
            raise ConfigError(message, OTHER) from error
        if plan != known:
            message = f"{name}: {_difference(known, plan)}"
            first = known.engine.name
            same = "repeat the first command with its options"
            hint = same if plan.engine.name == first else f"add --engine {first}"
            raise ConfigError(message, f"{hint}, or {OTHER}")

    def find(self, item: WorkItem, stored: StoredFile) -> FinishedItem | None:
        """Return the entry of a finished item; None if its entry or one of its files is missing.

        Raises:
            ChangedFileError: the input of a finished item has changed.
            ConfigError: the entry belongs to another job.
        """
        name = part_name(item)
        try:
            entry = FinishedItem.model_validate_json(self.folder.read(_entry_path(item)) or b"")
        except ValidationError:
            return None
        if entry.plan_sha256 != self.plan_sha256:
            message = f"{self.folder.name}/{_entry_path(item)} belongs to a job with another plan"
            raise ConfigError(message, OTHER)
        files = [entry.part, *([entry.rejects] if entry.rejects else [])]
        if not all(map(self.folder.holds, files)):
            return None
        same = entry.input_version is not None and entry.input_version == stored.version
        if not same and stored.digest(item.start, item.end) != entry.input_sha256:
            message = f"{stored.name} has changed since {name} was scored"
            raise ChangedFileError(message, f"restore the file, or {OTHER}")
        return entry

    def unfinished(self) -> list[WorkItem]:
        """Return the work items that no process has finished."""
        finished = self.folder.names(FINISHED)
        return [item for item in self.plan.items if f"{part_name(item)}.json" not in finished]

    def has_entry(self, item: WorkItem) -> bool:
        """Return whether a process has finished an item."""
        return self.folder.read(_entry_path(item)) is not None

    def finish(
        self,
        item: WorkItem,
        stored: StoredFile,
        part: FileRecord,
        rejects: Sequence[Reject],
        counts: RowCounts,
    ) -> FinishedItem:
        """Write the rejected rows of an item, and its entry.

        Args:
            item: the work item with the digest of the bytes that were read.
            stored: its file.
            part: its part.
            rejects: its rejected rows.
            counts: numbers of its rows.
        """
        rejected = None
        if rejects:
            lines = "".join(f"{reject.model_dump_json()}\n" for reject in rejects)
            rejected = self._write(f"{REJECTS}/{part_name(item)}.jsonl", lines)
        entry = FinishedItem(
            plan_sha256=self.plan_sha256,
            input_sha256=item.sha256,
            input_version=None if stored.is_local else stored.version,
            part=part,
            rejects=rejected,
            counts=counts,
        )
        self._write(_entry_path(item), entry.model_dump_json(indent=1))
        return entry

    def _write(self, path: str, content: str) -> FileRecord:
        with self.folder.new_file(path) as file:
            file.stream.write(content.encode())
            return file.finish()


def planned_engine(folder: JobFolder) -> str | None:
    """Return the name of the engine with which a job was started.

    None for a new job, or one with a cascade, which is chosen without a name.
    """
    content = folder.read(PLAN) if PLAN in folder.names() else None
    with suppress(ValidationError):
        if content is not None:
            engine = BulkPlan.model_validate_json(content).engine
            return None if engine.cascade else engine.name
    return None


def _difference(known: BulkPlan, plan: BulkPlan) -> str:
    """Describe the first difference between the plan of a job and another."""
    for name in ("model", "task", "engine", "tokenizer", "windows", "columns", "keep"):
        before = getattr(known, name)
        now = getattr(plan, name)
        if before != now:
            if isinstance(before, EngineIdentity) and before.name != now.name:
                before = before.name
                now = now.name
            return f"the job was started with {name} {_short(before)}, found {_short(now)}"
    files = {file.name: file for file in known.files}
    for file in plan.files:
        before = files.pop(file.name, None)
        if before is None:
            return f"{file.name} is not one of the files with which the job was started"
        if before != file:
            return f"{file.name} has changed since the job was started"
    if files:
        return f"{next(iter(files))} is missing, a file with which the job was started"
    changed = next(item for item in plan.items if item not in known.items)
    return f"{plan.files[changed.file].name} has changed since the job was started"


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Task):
        known = (value.label_thresholds or {}).values()
        thresholds = ", ".join(f"{threshold:g}" for threshold in known) or "none"
        return f"{value.describe_output()}; thresholds {thresholds}"
    return "other files" if isinstance(value, EngineIdentity) else str(value)


def part_name(item: WorkItem) -> str:
    """Return the name of the files of an item, without suffix."""
    return f"part-{item.number:06d}"


def part_path(item: WorkItem) -> str:
    """Return the path of the part of an item in the job folder."""
    return f"{PARTS}/{part_name(item)}.parquet"


def _entry_path(item: WorkItem) -> str:
    return f"{FINISHED}/{part_name(item)}.json"
