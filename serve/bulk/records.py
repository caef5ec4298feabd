"""The rows of a work item, in windows of bounded size; rows that cannot be read are set aside."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, Any

from pipework.data.examples import Example, Source, fit_input
from pipework.data.fields import cell_text, values_at
from pipework.data.readers import FIELDS, RawRow
from pipework.data.records import Records, check_unicode
from pipework.errors import ConfigError, DataError, InputError, failure_reason
from pipework.record import Record
from pipework.run_folder.manifest import Input
from pipework.run_folder.read_options import Column, Format
from pipework.serve.bulk.input_files import WorkItem
from pipework.serve.bulk.stored_files import StoredFile, changed, unreadable

WINDOW = 2048  # rows
WINDOW_BYTES = 4 * 2**20  # of the values of the rows


class Reject(Record):
    """A row that was not scored: its file, its line (or row, in parquet) from 1, and the reason."""

    file: str
    row: int
    reason: str


@dataclass(kw_only=True, slots=True)
class RowWindow:
    """Some rows of a file.

    Attributes:
        rows: their lines, or rows in parquet, from 1.
        examples: their inputs.
        rejects: rows that cannot be read; they are in none of the other lists.
        kept: an arrow batch of their values in the columns that are copied.
    """

    rows: list[int] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    kept: Any = None


class RangeInMemory:
    """A file for reading whose bytes from `start` on are partly in memory, and read only once."""

    closed = False

    def __init__(self, stream: IO[bytes], start: int, data: bytes) -> None:
        self._stream = stream
        self._start = start
        self._data = data
        self.seek = stream.seek
        self.tell = stream.tell

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size`."""
        at = self._stream.tell() - self._start
        if size < 0 or at < 0 or at + size > len(self._data):
            return self._stream.read(size)
        self._stream.seek(size, 1)
        return self._data[at : at + size]


@dataclass(frozen=True, kw_only=True)
class RowReader:
    """Reads the rows of a file.

    Attributes:
        source: columns and format; for parquet only the columns matter.
        columns: the names of the file's columns.
        keep: the columns that are copied to the output.
        expected: the input of the model.
        keys: the columns in the path of the file, see `path_keys`.
        types: the arrow types of copied columns in the output; strings if absent.
    """

    source: Source
    columns: Sequence[str]
    keep: Sequence[str]
    expected: Input
    keys: Mapping[str, str | None] = field(default_factory=dict)
    types: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Check that the file has the columns.

        Raises:
            ConfigError: a column is missing, is there twice, or cannot be copied.
        """
        copied = (name for name in self.keep if name not in self.keys)
        for column in (*map(self._key, self._fields().values()), *copied):
            names = self.columns if isinstance(column, str) else range(len(self.columns))
            found = names.count(column)  # type: ignore[arg-type]  # of the same type
            if found != 1:
                known = ", ".join([*self.columns, *self.keys])
                expected = "no column" if found == 0 else f"expected one column, found {found}:"
                message = f"{self.source.path}: {expected} {column!r}; columns: {known}"
                raise ConfigError(message, "choose the columns: --columns text=NAME, --keep NAME")

    def _key(self, column: Column) -> Column:
        """Return the column of the file; in jsonl, the first key of a path (see `values_at`)."""
        if isinstance(column, int) or column in self.columns:
            return column
        return column.partition(".")[0] if self._records.format is Format.JSONL else column

    def windows(self, item: WorkItem, stored: StoredFile, data: bytes) -> Iterator[RowWindow]:
        """Yield the windows of a work item, of which `data` are the bytes.

        Raises:
            DataError: a row group is damaged.
        """
        import pyarrow as pa  # noqa: PLC0415  (optional)

        if item.row_group is None:
            yield from self.text_rows(data, item.row)
            return
        with stored.open() as stream:
            try:
                file = RangeInMemory(stream, item.start, data)
                yield from self.table_rows(file, item.row_group, item.row)
            except IndexError as error:  # it has fewer row groups now
                raise changed(stored) from error
            except (pa.ArrowException, OSError) as error:
                name = f"{stored.name}, row group {item.row_group}"
                raise unreadable(name, error) from error

    def text_rows(self, data: bytes, first_line: int) -> Iterator[RowWindow]:
        """Yield the windows of a part of a text file; `first_line` is the number of its line."""
        import pyarrow as pa  # noqa: PLC0415  (optional)

        for records in _windows(self._records.numbered(data, first_line)):
            window = RowWindow()
            copied = self._copied
            kept = list[list[str | None]]()
            for line, record in records:
                try:
                    cells = self._cells(record)
                    texts = [_kept_text(cells.get(name)) for name in copied]
                except InputError as error:
                    self._reject(window, line, error)
                    continue
                if self._add(window, line, cells):
                    kept.append(texts)
            columns = zip(*kept, strict=True) if kept else [()] * len(copied)
            arrays = [pa.array(column, pa.string()) for column in columns]
            window.kept = self._kept(dict(zip(copied, arrays, strict=True)), len(window.rows))
            yield window

    def table_rows(
        self, stream: IO[bytes] | RangeInMemory, row_group: int, first_row: int
    ) -> Iterator[RowWindow]:
        """Yield the windows of a row group of parquet; its values keep their types."""
        import pyarrow as pa  # noqa: PLC0415  (optional)
        import pyarrow.parquet as pq  # noqa: PLC0415

        texts = list(self.names.values())
        file = pq.ParquetFile(stream)
        group = file.metadata.row_group(row_group)
        rows = WINDOW_BYTES * group.num_rows // max(1, group.total_byte_size)
        names = list(dict.fromkeys([*texts, *self._copied]))
        for batch in file.iter_batches(min(max(1, rows), WINDOW), [row_group], names):
            window = self.window(enumerate(batch.select(texts).to_pylist(), start=first_row))
            read = pa.array([row - first_row for row in window.rows], pa.int64())
            arrays = {name: self._converted(name, batch.column(name)) for name in self._copied}
            taken = {name: array.take(read) for name, array in arrays.items()}
            window.kept = self._kept(taken, len(window.rows))
            first_row += batch.num_rows
            yield window

    @cached_property
    def _copied(self) -> list[str]:
        """The copied columns of the file; the others are in its path."""
        return [name for name in self.keep if name in self.columns or name not in self.keys]

    def _kept(self, arrays: Mapping[str, Any], rows: int) -> Any:  # noqa: ANN401  (no types)
        """Return the copied columns as an arrow batch."""
        import pyarrow as pa  # noqa: PLC0415  (optional)

        keys = {name: pa.array([value] * rows, pa.string()) for name, value in self.keys.items()}
        columns = [self._converted(name, {**keys, **arrays}[name]) for name in self.keep]
        return pa.RecordBatch.from_arrays(columns, names=list(self.keep))

    def _converted(self, name: str, array: Any) -> Any:  # noqa: ANN401  (no types)
        """Return a copied column with its type in the output.

        Raises:
            DataError: a value cannot be converted.
        """
        import pyarrow as pa  # noqa: PLC0415  (optional)

        target = self.types.get(name, array.type)
        try:
            return array.cast(target)
        except pa.ArrowException as error:
            message = (
                f"{self.source.path}: column {name!r} of the type {array.type} cannot be copied as "
                f"{target}: {failure_reason(error)}"
            )
            raise DataError(message, "choose the columns to copy: --keep NAME,NAME") from error

    def window(self, rows: Iterable[tuple[int, Mapping[str, object]]]) -> RowWindow:
        """Return numbered rows as a window without columns that are copied."""
        window = RowWindow()
        for row, cells in rows:
            self._add(window, row, cells)
        return window

    @cached_property
    def names(self) -> dict[str, str]:
        """The column names of the text fields."""
        return {
            field: column if isinstance(column, str) else self.columns[column]
            for field, column in self._fields().items()
        }

    def _fields(self) -> dict[str, Column]:
        named = {field: getattr(self.source.reading, field) for field in FIELDS if field != "label"}
        return {field: column for field, column in named.items() if column is not None}

    @cached_property
    def _records(self) -> Records:
        return Records(self.source.read_options())

    def _cells(self, record: bytes) -> dict[str, object]:
        cells = self._records.parse(record)
        if isinstance(cells, dict):
            return cells
        if len(cells) != len(self.columns):
            message = f"expected {len(self.columns)} columns, found {len(cells)}"
            raise InputError(message)
        return dict(zip(self.columns, cells, strict=True))

    def _add(self, window: RowWindow, row: int, cells: Mapping[str, object]) -> bool:
        """Add a row, or set it aside and return False."""
        found = {field: values_at(cells, name) for field, name in self.names.items()}
        values: dict[str, Any] = {field: next(iter(found[field]), None) for field in found}
        try:
            example = fit_input(self.source.parse(RawRow(line=row, **values)), self.expected)
        except InputError as error:
            self._reject(window, row, error)
            return False
        window.rows.append(row)
        window.examples.append(example)
        return True

    def _reject(self, window: RowWindow, row: int, error: InputError) -> None:
        window.rejects.append(Reject(file=str(self.source.path), row=row, reason=str(error)))


def _windows(records: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the records in lists of bounded size; an empty one for no records."""
    window = list[tuple[int, bytes]]()
    size = 0
    for line, record in records:
        if size > WINDOW_BYTES or len(window) == WINDOW:
            yield window
            window = []
            size = 0
        window.append((line, record))
        size += len(record)
    yield window


def _kept_text(value: object) -> str | None:
    return None if value is None else check_unicode(cell_text(value))
