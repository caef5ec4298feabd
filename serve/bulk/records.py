"""The rows of a work item, in windows of bounded size; rows that cannot be read are set aside.

Shapes: W rows of a window.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, Any

from pipework.data.examples import SURROGATE, Example, Source, fit_input
from pipework.data.readers import FIELDS, MAX_FIELD, Column, Columns, Format, RawRow
from pipework.errors import ConfigError, InputError
from pipework.record import Record
from pipework.run_folder.manifest import Input

WINDOW, WINDOW_BYTES = 2048, 4 * 2**20  # rows, and bytes of their values
# A quote opens a field only at its start, as in Python's csv module.
_FIELD = rb'(?:"(?:[^"]++|"")*+"[^,\n]*+|(?!")[^,\n]*+)'
CSV_RECORD = re.compile(rb"%s(?:,%s)*+(?:\n|\Z)" % (_FIELD, _FIELD))
Cells = list[str] | dict[str, object]


class Reject(Record):
    """A row that was not scored: its file, its line (or row, in parquet) from 1, and the reason."""

    file: str
    row: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reads the rows of a file.

    Attributes:
        source: columns and format; for parquet only the columns matter.
        columns: the names of the file's columns.
        keep: the columns that are copied to the output.
        expected: the input of the model.
    """

    source: Source
    columns: Sequence[str]
    keep: Sequence[str]
    expected: Input

    def check(self) -> None:
        """Check that the file has the columns.

        Raises:
            ConfigError: a column is missing, is there twice, or cannot be copied.
        """
        name = self.source.path
        for column in (*self._fields().values(), *self.keep):
            found = self.columns.count(column) if isinstance(column, str) else 1
            if found != 1 or (isinstance(column, int) and column >= len(self.columns)):
                known = ", ".join(self.columns)
                message = f"{name}: expected one column {column!r}, found {found}; columns: {known}"
                raise ConfigError(message, "choose the columns: --columns text=NAME, --keep NAME")

    def text_rows(self, data: bytes, first_line: int) -> Iterator["RowWindow"]:
        """Yield the windows of a part of a text file; `first_line` is the number of its line."""
        file_format = Format(self.source.read_options().format)
        window, size = RowWindow(), 0
        for line, record in numbered_records(data, first_line, file_format):
            if size > WINDOW_BYTES or len(window.rows) + len(window.rejects) == WINDOW:
                yield window
                window, size = RowWindow(), 0
            size += len(record)
            try:
                cells = self._cells(record, file_format)
                kept = [_text(cells.get(name)) for name in self.keep]
            except InputError as error:
                window.reject(str(self.source.path), line, error)
            else:
                window.add(self, line, cells, kept)
        yield window

    def table_rows(
        self, stream: IO[bytes], row_group: int, first_row: int
    ) -> Iterator["RowWindow"]:
        """Yield the windows of a row group of parquet; its values keep their types."""
        import pyarrow.parquet as pq  # noqa: PLC0415  (optional)

        names = list(dict.fromkeys([*self.names.values(), *self.keep]))
        file = pq.ParquetFile(stream)
        group = file.metadata.row_group(row_group)
        rows = WINDOW_BYTES * group.num_rows // max(1, group.total_byte_size)
        batches = file.iter_batches(min(max(1, rows), WINDOW), [row_group], names)
        for batch in batches:
            window = RowWindow()
            texts = {field: batch.column(name).to_pylist() for field, name in self.names.items()}
            scored = [
                row
                for row in range(batch.num_rows)
                if window.add(
                    self,
                    first_row + row,
                    {self.names[field]: values[row] for field, values in texts.items()},
                )
            ]
            window.table = batch.select(list(self.keep)).take(scored)
            first_row += batch.num_rows
            yield window

    @cached_property
    def names(self) -> dict[str, str]:
        """The column names of the text fields."""
        return {
            field: column if isinstance(column, str) else self.columns[column]
            for field, column in self._fields().items()
        }

    def example(self, row: int, cells: Mapping[str, object]) -> Example:
        """Return the input of a row.

        Raises:
            InputError: a text is missing or is not a text, or the input does not fit the model.
        """
        values = {field: cells.get(name) for field, name in self.names.items()}
        example = self.source.parse(RawRow(line=row, **values))
        return fit_input(example, self.expected)

    def _fields(self) -> dict[str, Column]:
        named = {field: getattr(self.source.columns, field) for field in FIELDS if field != "label"}
        return {field: column for field, column in named.items() if column is not None}

    def _cells(self, record: bytes, file_format: Format) -> dict[str, object]:
        cells = parse_record(record, file_format)
        if isinstance(cells, dict):
            return cells
        if len(cells) != len(self.columns):
            message = f"expected {len(self.columns)} columns, found {len(cells)}"
            raise InputError(message)
        return dict(zip(self.columns, cells, strict=True))


@dataclass(kw_only=True, slots=True)
class RowWindow:
    """Some rows of a file.

    Attributes:
        rows: their lines, or rows in parquet, from 1.
        examples: their inputs.
        kept: their texts in the columns that are copied, for a text file.
        table: their values in the columns that are copied, for parquet.
        rejects: rows that cannot be read; they are in none of the other lists.
    """

    rows: list[int] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    kept: list[list[str | None]] = field(default_factory=list)
    table: Any = None
    rejects: list[Reject] = field(default_factory=list)

    def reject(self, name: str, row: int, error: InputError) -> None:
        """Set a row aside."""
        self.rejects.append(Reject(file=name, row=row, reason=str(error)))

    def add(
        self,
        reader: RowReader,
        row: int,
        cells: Mapping[str, object],
        kept: list[str | None] | None = None,
    ) -> bool:
        """Add a row, or set it aside and return False."""
        try:
            example = reader.example(row, cells)
        except InputError as error:
            self.reject(str(reader.source.path), row, error)
            return False
        self.rows.append(row)
        self.examples.append(example)
        if kept is not None:
            self.kept.append(kept)
        return True


def is_text_list(first_line: str, columns: Columns) -> bool:
    """Return whether a .txt file has a text per line, and not the columns of the training data."""
    if not first_line or "\t" in first_line or columns.text_pair is not None:
        return False
    return columns.text != first_line if isinstance(columns.text, str) else columns.text > 0


def check_types(files: Mapping[str, Mapping[str, str]], keep: Sequence[str]) -> None:
    """Check that a copied column has the same type in all files: parts are read as one table.

    Args:
        files: the type of each column, by file.
        keep: the columns that are copied.

    Raises:
        ConfigError: it has not.
    """
    for name in keep:
        types = {columns[name]: file for file, columns in reversed([*files.items()])}
        if len(types) > 1:
            found = ", ".join(f"{kind} in {file}" for kind, file in sorted(types.items()))
            message = f"column {name!r} has several types: {found}"
            raise ConfigError(message, "choose the columns to copy: --keep NAME,NAME")


def numbered_records(data: bytes, line: int, file_format: Format) -> Iterator[tuple[int, bytes]]:
    """Yield the records that are not blank, with the number of their first line."""
    blank = None if file_format is Format.TEXT else b"\r\n"  # None: any white space
    for record in split_records(data, quoted=file_format is Format.CSV):
        if record.strip(blank):
            yield line, record
        line += record.count(b"\n")


def split_records(data: bytes, *, quoted: bool) -> Iterator[bytes]:
    """Yield the records of a part of a text file, with their line ends."""
    start = 0
    while start < len(data):
        found = CSV_RECORD.match(data, start) if quoted else None
        if found is not None:
            end = found.end()
        else:  # in csv a quoted field that does not end
            end = len(data) if quoted else (data.find(b"\n", start) + 1) or len(data)
        yield data[start:end]
        start = end


def parse_record(record: bytes, file_format: Format) -> Cells:
    """Return the cells of a csv or tsv record, the object of jsonl, or a text as a cell.

    Raises:
        InputError: the record is not UTF-8, not csv, or not a JSON object.
    """
    try:
        text = record.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 (byte {error.start}: {error.reason})"
        raise InputError(message) from error
    match file_format:
        case Format.CSV:
            return _csv_cells(text)
        case Format.JSONL:
            return _json_object(text)
        case Format.TSV:
            return text.split("\t")
        case Format.TEXT | Format.SEMEVAL | Format.DOCUMENTS:
            return [text]


def _csv_cells(text: str) -> list[str]:
    csv.field_size_limit(MAX_FIELD)
    try:
        (cells,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        message = f"not CSV: {error}"
        raise InputError(message) from error
    return cells


def _json_object(text: str) -> dict[str, object]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"not JSON: {error}"
        raise InputError(message) from error
    if not isinstance(row, dict):
        message = f"expected an object, found {type(row).__name__}"
        raise InputError(message)
    for key in row:
        _text(key)
    return row


def _text(value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if SURROGATE.search(text):
        message = "a value is not valid Unicode: it contains a lone surrogate (\\uD800)"
        raise InputError(message)
    return text
