"""The files of a bulk job, cut into work items: row groups of parquet, byte ranges of text files.

Byte ranges end at the end of a record, see `pipework.data.records`.
"""

import hashlib
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pydantic import Field

from pipework.data.examples import Source
from pipework.data.records import LINES, Records
from pipework.data.text_files import check_text
from pipework.errors import DataError, InputError
from pipework.record import Record
from pipework.run_folder.read_options import Format
from pipework.serve.bulk.stored_files import PARQUET, StoredFile, unreadable

ITEM_BYTES = 2**20
LINE = "text"  # name of the only column of a list of texts
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # of the folders of Hive, Spark and pyarrow


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
    keys: dict[str, str | None] = Field(default_factory=dict)
    footer_sha256: str | None = None
    problem: str = ""


class WorkItem(Record):
    """A part of a file that is scored as a whole.

    Attributes:
        number: position in the job, in the order of the input.
        file: index of the file.
        start, end: its bytes in the file, or in the unpacked content of a compressed one.
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


def path_keys(name: str) -> dict[str, str | None]:
    """Return the columns in the path of a file: `year=2024/rows.csv` has the column `year`."""
    pairs = (part.partition("=") for part in posixpath.dirname(name).split("/"))
    return {
        unquote(key): None if value == HIVE_NULL else unquote(value)
        for key, equals, value in pairs
        if key and equals
    }


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
    if stored.name.lower().endswith(PARQUET):
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
            schema = metadata.schema.to_arrow_schema()
        except (pa.ArrowException, OSError) as error:
            raise unreadable(stored.name, error) from error
    if not schema.names:
        message = f"{stored.name} has no columns"
        raise DataError(message)
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
    records = Records(source.read_options())
    columns = dict[str, None]()
    items = list[WorkItem]()
    row = 1
    start = 0
    with stored.open() as stream:
        for part in records.blocks(stream, stored.name, -1 if stored.is_packed else ITEM_BYTES):
            skipped = 0
            if start == 0:
                check_text(part.partition(b"\n")[0], stored.name)
            if records.format is Format.JSONL:
                columns |= _keys(part, records)
            elif start == 0:
                names, skipped = _first_record(part, stored.name, records)
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


def _keys(part: bytes, records: Records) -> dict[str, None]:
    """Return the keys of the rows of jsonl in their order, without invalid rows."""
    keys = dict[str, None]()
    for record in records.split(part):
        with suppress(InputError):
            keys |= dict.fromkeys(records.parse(record))
    return keys


def _first_record(part: bytes, name: str, records: Records) -> tuple[Sequence[str], int]:
    """Return the column names of a csv, tsv or txt file, and the length of its header in bytes."""
    if records.format in LINES:
        return (LINE,), 0
    record = next(records.split(part))
    try:
        cells = list(records.parse(record))
    except InputError as error:
        message = f"{name}:1: {error}"
        raise DataError(message, "leave the file out, or correct it") from error
    if records.header:
        return cells, len(record)
    return [f"column_{number}" for number in range(len(cells))], 0
