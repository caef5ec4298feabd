"""The ledger of a bulk job: what is scored with what, and which work items are finished.

A job folder holds plan.json (model, engine, options, files and work items), parts/ with a parquet
file for each work item, rejects/ with the rows that could not be read, and finished/ with an entry
for each finished item. The entry is written after the part has been synced and renamed: a process
that ends at any moment leaves nothing unfinished that looks finished. Work items are independent,
so that several processes, also on several machines, may write to one folder.
"""

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from pipework.errors import ChangedFileError, ConfigError
from pipework.run_folder.files import FileRecord, Record, record_file
from pipework.run_folder.task import Task
from pipework.serve.bulk.input_files import READ_BYTES, InputFile, StoredFile, WorkItem
from pipework.serve.bulk.records import Reject

PLAN = "plan.json"
FOLDERS = PARTS, REJECTS, FINISHED, TEMPORARY = ("parts", "rejects", "finished", "temporary")
OTHER = "use another --out folder"


class EngineIdentity(Record):
    """The engine of a job, with the digests of its files, and its proof.

    Attributes:
        max_abs_diff: largest difference of a logit from the checkpoint's, on `rows` rows; None
            without a recorded proof.
    """

    name: str
    files: tuple[str, ...]
    rows: int | None
    max_abs_diff: float | None


class BulkPlan(Record):
    """What a job scores, and with what.

    Attributes:
        model: name of the run.
        task: its labels and thresholds.
        tokenizer: digest of the tokenizer.
        engine: the engine.
        columns: the columns of the texts.
        keep: the columns that are copied to the output.
        files: the files.
        items: their work items.
    """

    model: str
    task: Task
    tokenizer: str
    engine: EngineIdentity
    columns: tuple[str, ...]
    keep: tuple[str, ...]
    files: tuple[InputFile, ...]
    items: tuple[WorkItem, ...]


class FinishedItem(Record):
    """The entry of a finished work item.

    Attributes:
        input_sha256: digest of the bytes of the item.
        part: its part.
        rejects: the file with its rejected rows; None if there are none.
        rows, rejected, truncated: numbers of rows: scored, rejected, scored but truncated.
        labels: number of scored rows by label; empty for a regression.
    """

    input_sha256: str
    part: FileRecord
    rejects: FileRecord | None
    rows: int
    rejected: int
    truncated: int
    labels: dict[str, int]


class Ledger:
    """A job folder.

    Attributes:
        plan: the plan of the job.
    """

    def __init__(self, folder: Path, plan: BulkPlan) -> None:
        """Create a job folder, or continue a job with the same plan.

        Raises:
            ConfigError: the folder belongs to a job with another model, engine, option or input,
                or holds other files.
        """
        self._folder = folder
        if folder.exists() and not (folder / PLAN).exists() and any(_foreign(folder)):
            message = f"{folder} holds other files: expected a new folder, or one of a bulk job"
            raise ConfigError(message, OTHER)
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._remove_temporary()
        self.plan = plan
        _agree(folder, plan)

    def temporary(self, item: WorkItem, suffix: str) -> Path:
        """Return the path of a temporary file that no other process writes."""
        return self._folder / TEMPORARY / f"{_name(item)}.{_process()}{suffix}"

    def find(self, item: WorkItem, stored: StoredFile) -> FinishedItem | None:
        """Return the entry of a finished item; None if its entry or one of its files is missing.

        Raises:
            ChangedFileError: the input of a finished item has changed.
        """
        path = self._folder / FINISHED / f"{_name(item)}.json"
        try:
            entry = FinishedItem.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        files = [entry.part, *([entry.rejects] if entry.rejects else [])]
        for record in files:
            part = self._folder / record.path
            if not part.is_file() or record_file(self._folder, part) != record:
                return None
        if digest(stored, item) != entry.input_sha256:
            message = f"{stored.name} has changed since {path.stem} was scored"
            raise ChangedFileError(message, f"restore the file, or {OTHER}")
        return entry

    def finish(
        self,
        item: WorkItem,
        part: Path,
        rejects: Sequence[Reject],
        counts: "RowCounts",
        sha256: str,
    ) -> FinishedItem:
        """Move the part of an item to its place, and write its rejected rows and its entry.

        Args:
            item: the work item.
            part: a temporary file, see `temporary`.
            rejects: its rejected rows.
            counts: numbers of its scored rows.
            sha256: digest of the bytes that were read.
        """
        record = self._move(part, f"{PARTS}/{_name(item)}.parquet")
        rejected = None
        if rejects:
            lines = "".join(f"{reject.model_dump_json()}\n" for reject in rejects)
            rejected = self._write(item, lines, f"{REJECTS}/{_name(item)}.jsonl")
        entry = FinishedItem(
            input_sha256=sha256,
            part=record,
            rejects=rejected,
            rows=counts.rows,
            rejected=len(rejects),
            truncated=counts.truncated,
            labels=dict(sorted(counts.labels.items())),
        )
        content = entry.model_dump_json(indent=1)
        self._write(item, content, f"{FINISHED}/{_name(item)}.json")
        return entry

    def _write(self, item: WorkItem, content: str, path: str) -> FileRecord:
        temporary = self.temporary(item, ".txt")
        temporary.write_text(content, encoding="utf-8")
        return self._move(temporary, path)

    def _move(self, temporary: Path, path: str) -> FileRecord:
        """Sync a file, move it to its place in the job folder, and sync the folder."""
        target = self._folder / path
        _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
        return record_file(self._folder, target)

    def _remove_temporary(self) -> None:
        """Remove the temporary files of processes of this machine that have ended."""
        host = socket.gethostname()
        for path in (self._folder / TEMPORARY).glob(f"*.{host}-*.*"):
            process = path.name.rpartition(f"{host}-")[2].partition(".")[0]
            if process.isdecimal() and not _is_running(int(process)):
                path.unlink(missing_ok=True)


@dataclass(kw_only=True, slots=True)
class RowCounts:
    """Numbers of scored rows: all, those with a truncated input, and those of each label."""

    rows: int = 0
    truncated: int = 0
    labels: Counter[str] = field(default_factory=Counter)

    def add(self, rows: int, truncated: int, labels: Mapping[str, int]) -> None:
        """Add numbers."""
        self.rows += rows
        self.truncated += truncated
        self.labels.update(labels)


def digest(stored: StoredFile, item: WorkItem) -> str:
    """Return the hexadecimal SHA-256 of the bytes of an item."""
    hashed, left = hashlib.sha256(), item.end - item.start
    with stored.open() as stream:
        stream.seek(item.start)
        while left and (data := stream.read(min(left, READ_BYTES))):
            hashed.update(data)
            left -= len(data)
    return hashed.hexdigest()


def _agree(folder: Path, plan: BulkPlan) -> None:
    """Write the plan of a new job, or compare it with that of the job."""
    path, temporary = folder / PLAN, folder / TEMPORARY / f"{PLAN}.{_process()}.json"
    if not path.exists():
        temporary.write_text(plan.model_dump_json(indent=1), encoding="utf-8")
        _sync(temporary)
        with suppress(FileExistsError):  # another process of this job was faster
            os.link(temporary, path)
        temporary.unlink()
        _sync(folder)
    try:
        known = BulkPlan.model_validate_json(path.read_bytes())
    except ValidationError as error:
        message = f"{path} is not the plan of a bulk job of this version"
        raise ConfigError(message, OTHER) from error
    if plan != known:
        message = f"{folder}: {_difference(known, plan)}"
        raise ConfigError(message, f"repeat the first command with its options, or {OTHER}")


def _difference(known: BulkPlan, plan: BulkPlan) -> str:
    """Describe the first difference between the plan of a job and another."""
    for name in ("model", "task", "engine", "tokenizer", "columns", "keep"):
        before, now = getattr(known, name), getattr(plan, name)
        if before != now:
            if isinstance(before, EngineIdentity) and before.name != now.name:
                before, now = before.name, now.name
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
        thresholds = ", ".join(f"{threshold:g}" for threshold in value.thresholds) or "none"
        return f"{value.kind} (labels {', '.join(value.labels)}; thresholds {thresholds})"
    return "other files" if isinstance(value, EngineIdentity) else str(value)


def _foreign(folder: Path) -> list[str]:
    """Return the entries of a folder that are not those of a job."""
    return [path.name for path in folder.iterdir() if path.name not in FOLDERS]


def _name(item: WorkItem) -> str:
    return f"part-{item.number:06d}"


def _process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
