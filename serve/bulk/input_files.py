"""The files of a bulk job, cut into work items: row groups of parquet, byte ranges of text files.

Byte ranges end at the end of a record, see `pipework.data.records`.
"""

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from pipework.data.examples import Source
from pipework.data.readers import SUFFIXES, Format, check_text
from pipework.data.records import parse_record, record_blocks, split_records
from pipework.errors import ConfigError, DataError, InputError, failure_reason, without_password
from pipework.record import Record
from pipework.serve.bulk.job_folder import JobFolder, file_system

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
        footer_sha256: digest of the footer of parquet.
    """

    name: str
    size: int
    columns: tuple[str, ...]
    types: tuple[str, ...] = ()
    footer_sha256: str | None = None

    @property
    def by_column(self) -> dict[str, str]:
        """The type of each column."""
        types = self.types or ("string",) * len(self.columns)
        return dict(zip(self.columns, types, strict=True))


class WorkItem(Record):
    """A part of a file that is scored as a whole.

    Attributes:
        number: position in the job; the numbers are in the order of the input.
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


def unreadable(name: str, error: Exception, hint: str = "restore it, or leave it out") -> DataError:
    """Return the error for a file that cannot be read."""
    return DataError(f"{name} cannot be read: {failure_reason(error)}", hint)


def find_files(pattern: str, out: JobFolder | None = None) -> list[StoredFile]:
    """Return the files of a path, a folder or a glob pattern in the order of their names.

    A folder stands for its .parquet, .csv, .tsv, .txt and .jsonl files, at any depth. Files whose
    name starts with a dot or an underscore, and those below the job folder, are left out.

    Raises:
        ConfigError: nothing was found, or a file has another suffix.
        DataError: a folder cannot be read.
        MissingDependencyError: the package for a kind of URL is not installed.
    """
    files, path = file_system("--in", pattern)
    known = (PARQUET, *SUFFIXES)
    try:
        base, paths = _list(files, path)
    except Exception as error:  # of any package for object stores
        name = f"--in {without_password(pattern)}"
        raise unreadable(name, error, "check the address and the permissions") from error
    paths = [
        found
        for found in paths
        if not posixpath.basename(found).startswith((".", "_"))
        and not (out is not None and out.covers(files, found))
    ]
    if not paths:
        message = f"--in {without_password(pattern)}: no file found"
        raise ConfigError(message, f"expected a file, a folder or a pattern of {', '.join(known)}")
    for found in paths:
        if not found.endswith(known):
            message = f"{found} has none of the suffixes {', '.join(known)}"
            raise ConfigError(message, "choose a narrower pattern")
    return [StoredFile.of(files, found, base) for found in sorted(paths)]


def _list(files: Any, path: str) -> tuple[str, list[str]]:  # noqa: ANN401  (no types)
    """Return the folder of a path or a pattern, and the files."""
    from fsspec.asyn import AsyncFileSystem  # noqa: PLC0415  (optional)

    # The walk of fsspec skips folders that cannot be read; listings of object stores do not.
    kind = type(files)
    lists = issubclass(kind, AsyncFileSystem) and kind._find is not AsyncFileSystem._find  # noqa: SLF001
    strict = {} if lists else {"on_error": "raise"}
    if files.isdir(path):
        found = files.find(path, **strict)
        return path, [name for name in found if name.endswith((PARQUET, *SUFFIXES))]
    magic = min((path.index(sign) for sign in "*?[" if sign in path), default=len(path))
    base = posixpath.dirname(path[:magic])
    if magic < len(path):
        try:
            return base, files.glob(path, **strict)
        except FileNotFoundError:  # the folder is missing
            return base, []
    return base, [path] * files.exists(path)


def plan_file(
    stored: StoredFile, source: Source | None, index: int, first: int
) -> tuple[InputFile, list[WorkItem]]:
    """Cut a file into work items.

    Args:
        stored: the file.
        source: how to read a text file; not used for parquet.
        index: the index of the file in the job.
        first: the number of its first work item.

    Raises:
        DataError: the file is damaged, or ends inside a quoted field.
    """
    if source is None or stored.name.endswith(PARQUET):
        return _plan_parquet(stored, index, first)
    return _plan_text(stored, source, index, first)


def _plan_parquet(stored: StoredFile, index: int, first: int) -> tuple[InputFile, list[WorkItem]]:
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
                number=first + len(items),
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
        footer_sha256=footer,
    )
    return file, items


def _plan_text(
    stored: StoredFile, source: Source, index: int, first: int
) -> tuple[InputFile, list[WorkItem]]:
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
                number=first + len(items),
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
    if start and not columns:
        message = f"{stored.name}: expected JSON objects in UTF-8, found none"
        raise DataError(message, "convert it, or leave it out")
    return InputFile(name=stored.name, size=stored.size, columns=tuple(columns)), items


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
