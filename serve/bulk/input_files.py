"""The files of a bulk job, cut into work items: row groups of parquet, byte ranges of text files.

Byte ranges end at the end of a record, see `pipework.data.records`.
"""

import hashlib
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import unquote

from pydantic import Field

from pipework.data.examples import Source
from pipework.data.readers import SUFFIXES, Format, check_text
from pipework.data.records import parse_record, record_blocks, split_records
from pipework.errors import (
    ConfigError,
    DataError,
    InputError,
    PipeError,
    TransientError,
    failure_reason,
    is_transient,
    without_password,
)
from pipework.record import Record
from pipework.serve.bulk.job_folder import AGAIN, PARTS, PLAN, JobFolder, file_system

ITEM_BYTES = 2**20
PARQUET = ".parquet"
LINE = "text"  # name of the only column of a list of texts
# The content of a file as object stores describe it: its digest or generation, or else its time.
ETAGS = ("ETag", "etag")
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file on a local disk or in an object store.

    Attributes:
        name: path relative to the folder that was given, so that it is the same on all machines.
        path: path in the file system.
        files: the fsspec file system.
        size: bytes.
        version: changes with the content: ETag, or size and time; None if none is known.
    """

    name: str
    path: str
    files: Any
    size: int
    version: str | None

    @classmethod
    def of(cls, files: Any, path: str, base: str) -> "StoredFile":  # noqa: ANN401  (no types)
        """Return a file of a file system; its name is relative to the folder `base`."""
        info = files.info(path)
        name = posixpath.relpath(path, base or "/")
        return cls(name=name, path=path, files=files, size=info["size"], version=_version(info))

    @property
    def is_local(self) -> bool:
        """Whether reading costs no transfer."""
        from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415  (optional)

        return isinstance(self.files, LocalFileSystem)

    def unchanged(self) -> bool:
        """Return whether the file has the same version as when it was found."""
        self.files.invalidate_cache()
        with suppress(Exception):  # of any package; who reads the file gets the reason
            return self.version is not None and self.version == _version(self.files.info(self.path))
        return False

    def open(self) -> IO[bytes]:
        """Open the file for reading.

        Raises:
            DataError: it cannot be opened.
        """
        try:
            stream: IO[bytes] = self.files.open(self.path, "rb")
        except Exception as error:  # of any package for object stores
            raise unreadable(self.name, error) from error
        return stream

    def read(self, start: int, end: int) -> bytes:
        """Return some bytes of the file; fewer if it has become shorter.

        Raises:
            DataError: they cannot be read.
        """
        with self.open() as stream:
            try:
                stream.seek(start)
                return stream.read(end - start)
            except Exception as error:  # of any package for object stores
                raise unreadable(self.name, error) from error

    def digest(self, item: "WorkItem") -> str:
        """Return the hexadecimal SHA-256 of the bytes of an item."""
        return hashlib.sha256(self.read(item.start, item.end)).hexdigest()


def _version(info: Mapping[str, Any]) -> str | None:
    """Return what a file system knows about the content of a file."""
    for name in ETAGS:
        if info.get(name):
            return str(info[name])
    times = [info[name] for name in TIMES if info.get(name)]
    return f"{info['size']} bytes of {times[0]}" if times else None


class InputFile(Record):
    """A file of a job.

    Attributes:
        name, size: see `StoredFile`.
        columns: its column names; in jsonl the keys of all rows; none in an empty text file.
        types: their types in parquet; empty in a text file, whose values are texts.
        keys: values of the columns that are in its path, as `year=2024/rows.parquet` has them.
        footer_sha256: digest of the footer of parquet.
        problem: why it is not scored, or "".
    """

    name: str
    size: int
    columns: tuple[str, ...]
    types: tuple[str, ...] = ()
    keys: dict[str, str] = Field(default_factory=dict)
    footer_sha256: str | None = None
    problem: str = ""


class WorkItem(Record):
    """A part of a file that is scored as a whole.

    Attributes:
        number: position in the job, in the order of the input.
        file: index of the file.
        start, end: its bytes in the file.
        rows: number of its rows in parquet, of its lines in a text file.
        row: number of its first line, or of its first row in parquet, from 1.
        row_group: index of the row group in parquet; None in a text file.
        sha256: digest of its bytes; None in parquet, whose bytes are not read by the planning.
    """

    number: int
    file: int
    start: int
    end: int
    row: int
    rows: int
    row_group: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """A file with its work items.

    Attributes:
        file: the file.
        items: its work items, numbered from 0; none if it has a problem.
        source: how to read it; None if it has a problem.
        schema: its arrow schema; None for a text file, whose values are texts.
    """

    file: InputFile
    items: list[WorkItem]
    source: Source | None = None
    schema: Any = None

    def arrow_schema(self) -> Any:  # noqa: ANN401  (no types)
        """Return the schema of the columns, with those in the path of the file."""
        import pyarrow as pa  # noqa: PLC0415  (optional)

        names = dict.fromkeys((*self.file.keys, *self.file.columns))
        texts = pa.schema([(name, pa.string()) for name in names])
        if self.schema is None:
            return texts
        added = [texts.field(name) for name in self.file.keys if name not in self.file.columns]
        return pa.schema([*self.schema, *added])


def unreadable(name: str, error: Exception, hint: str = "") -> PipeError:
    """Return the error for a file that cannot be read."""
    message = f"{name} cannot be read: {failure_reason(error)}"
    if is_transient(error):
        return TransientError(message, hint or AGAIN)
    return DataError(message, hint or "restore it, or leave it out")


def changed(stored: StoredFile) -> DataError:
    """Return the error for a file that is not the planned one any more."""
    message = f"{stored.name} has changed since the job was planned"
    return DataError(message, "restore the file, or use another --out folder")


def find_files(
    pattern: str, out: JobFolder | None = None, *, allow_skipped: bool = False
) -> list[StoredFile]:
    """Return the files of a path, a folder or a glob pattern in the order of their names.

    A folder stands for its files, at any depth. Files and folders whose name starts with a dot or
    an underscore, and job folders, are left out.

    Args:
        pattern: the path or the pattern.
        out: the job folder, which is left out as well.
        allow_skipped: whether files with other suffixes are left out; else they are an error.

    Raises:
        ConfigError: nothing was found, or files have other suffixes.
        DataError: a folder cannot be read.
        MissingDependencyError: the package for a kind of URL is not installed.
    """
    files, path = file_system("--in", pattern)
    named = f"--in {without_password(pattern)}"
    try:
        base, paths = _list(files, path)
        jobs = _job_folders(files, base, paths)
    except Exception as error:  # of any package for object stores
        raise unreadable(named, error, "check the address and the permissions") from error
    paths = [
        found
        for found in paths
        if not any(part.startswith((".", "_")) for part in _parts(found, base))
        and jobs.isdisjoint(posixpath.join(base, folder) for folder in _folders(found, base))
        and not (out is not None and out.covers(files, found))
    ]
    known = (PARQUET, *SUFFIXES)
    skipped = Counter(posixpath.splitext(found)[1] for found in paths if not found.endswith(known))
    if skipped and not allow_skipped:
        counts = ", ".join(
            f"{suffix or 'none'} ({skipped[suffix]:,})" for suffix in sorted(skipped)
        )
        message = f"{named}: files with other suffixes than {', '.join(known)}: {counts}"
        raise ConfigError(message, "choose a narrower pattern, or leave them out: --allow-skipped")
    paths = [found for found in paths if found.endswith(known)]
    if not paths:
        job = f", without the files of the bulk job in {min(jobs)}" if jobs else ""
        hint = f"expected a file, a folder or a pattern of {', '.join(known)}"
        message = f"{named}: no file found{job}"
        raise ConfigError(message, hint)
    return [StoredFile.of(files, found, base) for found in sorted(paths)]


def _parts(path: str, base: str) -> list[str]:
    """Return the components of a path below a folder."""
    return posixpath.relpath(path, base or "/").split("/")


def _folders(path: str, base: str) -> list[str]:
    """Return the folders between a folder and a file below it, relative to it; "" is itself."""
    parts = _parts(path, base)
    return ["/".join(parts[:depth]) for depth in range(len(parts))]


def _job_folders(files: Any, base: str, paths: Sequence[str]) -> set[str]:  # noqa: ANN401
    """Return the folders that hold a bulk job: its plan and its parts."""
    folders = {folder for path in paths for folder in _folders(path, base)}
    # A pattern that names the folder of the parts reads them.
    above = {folder for folder in folders if f"{folder}/{PARTS}".strip("/") in folders}
    candidates = {posixpath.join(base, folder) for folder in above}
    return {folder for folder in candidates if files.exists(posixpath.join(folder, PLAN))}


def _list(files: Any, path: str) -> tuple[str, list[str]]:  # noqa: ANN401  (no types)
    """Return the folder of a path or a pattern, and the files."""
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415  (optional)

    # The walk of fsspec skips folders that cannot be read; listings of object stores do not.
    kind = type(files)
    lists = issubclass(kind, AsyncFileSystem) and kind._find is not AsyncFileSystem._find  # noqa: SLF001
    strict = {} if lists else {"on_error": "raise"}
    if files.isdir(path):
        return path, list(files.find(path, **strict))
    magic = min((path.index(sign) for sign in "*?[" if sign in path), default=len(path))
    base = posixpath.dirname(path[:magic])
    if magic < len(path):
        try:
            found = files.glob(path, detail=True, **strict)
            return base, [name for name, info in found.items() if info["type"] != "directory"]
        except FileNotFoundError:  # the folder is missing
            return base, []
    return base, [path] * files.exists(path)


def path_keys(name: str) -> dict[str, str]:
    """Return the columns in the path of a file: `year=2024/rows.csv` has the column `year`."""
    pairs = (part.partition("=") for part in posixpath.dirname(name).split("/"))
    return {key: unquote(value) for key, equals, value in pairs if key and equals}


def plan_file(stored: StoredFile, source: Source, index: int) -> PlannedFile:
    """Cut a file into work items.

    Args:
        stored: the file.
        source: how to read it.
        index: the index of the file in the job.

    Raises:
        DataError: the file is empty or damaged, or ends inside a quoted field.
    """
    if not stored.size:
        message = f"{stored.name} is empty"
        raise DataError(message)
    if stored.name.endswith(PARQUET):
        return _plan_parquet(stored, source, index)
    return _plan_text(stored, source, index)


def _plan_parquet(stored: StoredFile, source: Source, index: int) -> PlannedFile:
    import pyarrow as pa  # noqa: PLC0415  (optional)
    import pyarrow.parquet as pq  # noqa: PLC0415

    with stored.open() as stream:
        try:
            metadata = pq.ParquetFile(stream).metadata
            stream.seek(stored.size - 8 - metadata.serialized_size)
            footer = hashlib.sha256(stream.read()).hexdigest()
        except (pa.ArrowException, OSError) as error:
            raise unreadable(stored.name, error) from error
    schema = metadata.schema.to_arrow_schema()
    items = list[WorkItem]()
    row = 1
    for group in range(metadata.num_row_groups):
        parts = metadata.row_group(group)
        chunks = [parts.column(column) for column in range(parts.num_columns)]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        ends = [at + chunk.total_compressed_size for at, chunk in zip(starts, chunks, strict=True)]
        if parts.num_rows:
            item = WorkItem(
                number=len(items),
                file=index,
                start=min(starts),
                end=max(ends),
                row=row,
                rows=parts.num_rows,
                row_group=group,
            )
            items.append(item)
        row += parts.num_rows
    file = InputFile(
        name=stored.name,
        size=stored.size,
        columns=tuple(schema.names),
        types=tuple(map(str, schema.types)),
        keys=path_keys(stored.name),
        footer_sha256=footer,
    )
    return PlannedFile(file=file, items=items, source=source, schema=schema)


def _plan_text(stored: StoredFile, source: Source, index: int) -> PlannedFile:
    options = source.read_options()
    file_format = Format(options.format)
    columns = dict[str, None]()
    items = list[WorkItem]()
    row = 1
    start = 0
    with stored.open() as stream:
        for part in record_blocks(stream, stored.name, file_format, ITEM_BYTES):
            skipped = 0
            if start == 0:
                check_text(part.partition(b"\n")[0], stored.name)
            if file_format is Format.JSONL:
                columns |= _keys(part)
            elif start == 0:
                names, skipped = _first_record(part, source, file_format, header=options.header)
                columns |= dict.fromkeys(names)
            item = WorkItem(
                number=len(items),
                file=index,
                start=start + skipped,
                end=start + len(part),
                row=row + part.count(b"\n", 0, skipped),
                rows=part.count(b"\n", skipped) + (not part.endswith(b"\n")),
                sha256=hashlib.sha256(part[skipped:]).hexdigest(),
            )
            if part[skipped:].strip():
                items.append(item)
            start += len(part)
            row += part.count(b"\n")
    if not columns:
        message = f"{stored.name}: expected JSON objects in UTF-8, found none"
        raise DataError(message, "convert it, or leave it out")
    keys = path_keys(stored.name)
    file = InputFile(name=stored.name, size=stored.size, columns=tuple(columns), keys=keys)
    return PlannedFile(file=file, items=items, source=source)


def _keys(part: bytes) -> dict[str, None]:
    """Return the keys of the rows of jsonl in their order, without invalid rows."""
    keys = dict[str, None]()
    for record in split_records(part, Format.JSONL):
        with suppress(InputError):
            cells = parse_record(record, Format.JSONL)
            keys |= dict.fromkeys(cells)
    return keys


def _first_record(
    part: bytes, source: Source, file_format: Format, *, header: bool
) -> tuple[Sequence[str], int]:
    """Return the column names of a csv, tsv or txt file, and the length of its header in bytes."""
    if file_format is Format.TEXT:
        return (LINE,), 0
    record = next(split_records(part, file_format))
    try:
        cells = list(parse_record(record, file_format))
    except InputError as error:
        message = f"{source.path}:1: {error}"
        raise DataError(message, "leave the file out, or correct it") from error
    if header:
        return cells, len(record)
    return [f"column_{number}" for number in range(len(cells))], 0
