"""Rows of a data file become examples. An error names the file and the line.

csv follows RFC 4180 (quotes matter). tsv has no quoting at all, as in GLUE and THUCNews: a line is
split at tabs and nothing else. jsonl is one object a line. All are UTF-8, with or without a byte
order mark, with LF or CRLF.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path

from pipework.errors import DataError
from pipework.manifest import Reading

Column = str | int
Span = tuple[int, int]
Label = str | tuple[str, ...]
NUMBER = re.compile(r"[0-9]{1,9}")
SURROGATE = re.compile(r"[\ud800-\udfff]")


class Format(StrEnum):
    """How rows lie in a file."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One text, a pair, or a text with two entities, with its label where it has one.

    Attributes:
        text: without the marks of its entities.
        text_pair: the second text of a pair.
        entities: the characters [start, end) of two entities in `text`, in the order of their
            roles, e1 and e2.
        label: one label, or the labels of a multi-label task (none of them is an empty tuple).
    """

    text: str
    text_pair: str | None = None
    entities: tuple[Span, Span] | None = None
    label: Label | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Where the fields lie: by name, or by number counted from 0."""

    text: Column = "text"
    text_pair: Column | None = None
    label: Column | None = "label"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data file and how to read it.

    `header` says whether the first line holds names; None means that it does when a column is
    given by name. `format` None means by the file's suffix (.csv, .tsv, .txt as tsv, .jsonl).
    """

    path: Path
    columns: Columns
    format: Format | None = None
    header: bool | None = None

    @classmethod
    def of(cls, reading: Reading, path: Path) -> "Source":
        """Return a file that is to be read as a manifest says."""
        columns = Columns(text=reading.text, text_pair=reading.text_pair, label=reading.label)
        return cls(path=path, columns=columns, format=Format(reading.format), header=reading.header)

    def reading(self) -> Reading:
        """Return how the file is read, with nothing left to be guessed.

        Raises:
            DataError: the format cannot be told from the suffix.
        """
        wanted = (self.columns.text, self.columns.text_pair, self.columns.label)
        named = any(isinstance(column, str) for column in wanted)
        return Reading(
            text=self.columns.text,
            text_pair=self.columns.text_pair,
            label=self.columns.label,
            format=Format(self.format or _format_of(self.path)).value,
            header=named if self.header is None else self.header,
        )

    def unlabelled(self) -> "Source":
        """Return the same file, read without labels, whether or not it has any."""
        reading = self.reading().model_copy(update={"label": None})
        return Source.of(reading, self.path)

    def rows(self) -> Iterator[Example]:
        """Read the rows in order; blank lines are no rows.

        Raises:
            DataError: for a file that is missing or not UTF-8, a row with too few or too many
                fields, a text that is not Unicode, or an empty label; the message starts with
                file:line.
        """
        match self.format or _format_of(self.path):
            case Format.JSONL:
                return self._jsonl()
            case Format.CSV:
                return self._table(_csv_rows(self.path))
            case Format.TSV:
                lines = numbered_lines(self.path)
                return self._table((line, text.split("\t")) for line, text in lines if text)

    def _table(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Example]:
        wanted = (self.columns.text, self.columns.text_pair, self.columns.label)
        first = next(rows, None)
        if first is None:
            message = f"{self.path} is empty: expected rows"
            raise DataError(message, "check the path")
        names: list[str] = []
        if self.reading().header:
            names = first[1]
        else:
            rows = chain([first], rows)
        width = len(first[1])
        indices = [self._index(column, names, width) for column in wanted]
        for line, cells in rows:
            if len(cells) != width:
                message = (
                    f"{self.path}:{line}: expected {width} columns as in the first line, "
                    f"found {len(cells)}"
                )
                hint = "a stray separator or quote; in tsv a text may hold no tab"
                raise DataError(message, hint)
            yield self._example(line, *(None if i is None else cells[i] for i in indices))

    def _index(self, column: Column | None, names: Sequence[str], width: int) -> int | None:
        if column is None or (isinstance(column, int) and 0 <= column < width):
            return column
        if isinstance(column, int) or column not in names:
            found = ", ".join(names) if names else f"{width} columns, no header"
            message = f"{self.path}:1: no column {column!r}; found {found}"
            raise DataError(message, "set data.columns to names or numbers (from 0) of the file")
        return names.index(column)

    def _jsonl(self) -> Iterator[Example]:
        columns = (self.columns.text, self.columns.text_pair, self.columns.label)
        for line, text in numbered_lines(self.path):
            if not text:
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                message = f"{self.path}:{line}: not JSON: {error}"
                raise DataError(message) from error
            if not isinstance(row, dict):
                message = f"{self.path}:{line}: expected an object, found {type(row).__name__}"
                raise DataError(message)
            yield self._example(line, *(self._member(row, column, line) for column in columns))

    def _member(self, row: Mapping[str, object], column: Column | None, line: int) -> str | None:
        if column is None:
            return None
        value = row.get(str(column))
        if isinstance(value, bool) or not isinstance(value, str | int):
            message = (
                f"{self.path}:{line}: expected a string at {column!r}, "
                f"found {'nothing' if value is None else type(value).__name__}"
            )
            raise DataError(message, f"keys of this row: {', '.join(row)}")
        return str(value)

    def _example(
        self, line: int, text: str | None, text_pair: str | None, label: str | None
    ) -> Example:
        if label is not None and not (label := label.strip()):
            message = f"{self.path}:{line}: the label is empty"
            raise DataError(message, "every row of this file needs a label")
        if any(SURROGATE.search(field or "") for field in (text, text_pair)):
            message = (
                f"{self.path}:{line}: a text is not Unicode: it holds half of a pair (\\uD800)"
            )
            raise DataError(message, "write the character itself, or both halves")
        return Example(text=text or "", text_pair=text_pair, label=label)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of a UTF-8 file.

    Only LF ends a line (a CR before it goes too): U+2028 and its kind belong to the text.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            yield from decoded_lines(stream, str(path))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message, "check data.root and the file names") from error


def decoded_lines(lines: Iterable[bytes], where: str) -> Iterator[tuple[int, str]]:
    """Do as `numbered_lines` for lines from elsewhere, such as standard input."""
    for number, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            message = f"{where}:{number}: not UTF-8 (byte {error.start}: {error.reason})"
            raise DataError(message, "convert it: iconv -f GB18030 -t UTF-8") from error
        yield number, text.removesuffix("\n").removesuffix("\r")


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (text + "\n" for _, text in numbered_lines(path))
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        message = f"{path}:{reader.line_num}: not CSV: {error}"
        raise DataError(
            message, 'if quotes are plain text here, set data.format = "tsv"'
        ) from error


def _format_of(path: Path) -> Format:
    suffixes = {".csv": Format.CSV, ".tsv": Format.TSV, ".txt": Format.TSV, ".jsonl": Format.JSONL}
    if path.suffix not in suffixes:
        message = f"{path}: cannot tell the format from the suffix {path.suffix!r}"
        raise DataError(message, f"set data.format to one of {', '.join(Format)}")
    return suffixes[path.suffix]


def resolve_label(found: str, labels: Mapping[str, int]) -> int | None:
    """Return a label's place among `labels`: by name, or by number where it is no name.

    Files often hold numbers, with the names beside them in a list. Where a name is a number
    itself, a number is only ever a name. None where it is neither.
    """
    if found in labels:
        return labels[found]
    if not NUMBER.fullmatch(found) or any(NUMBER.fullmatch(label) for label in labels):
        return None
    return int(found) if int(found) < len(labels) else None


def chunks(rows: Iterable[Example], size: int) -> Iterator[list[Example]]:
    """Cut rows into lists of `size`; the last may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def split_pair(line: str) -> Example:
    """Read a text, or a pair whose texts a tab separates."""
    text, tab, text_pair = line.partition("\t")
    return Example(text=text, text_pair=text_pair if tab else None)


def parse_columns(given: str) -> Columns:
    """Read `text=0,text_pair=1` or `text=sentence`; a label is not asked for.

    Raises:
        DataError: a part that is not FIELD=COLUMN, or another field.
    """
    found: dict[str, Column] = {}
    for part in given.split(","):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column or name not in ("text", "text_pair"):
            message = f"columns {given!r}: expected text=COLUMN, and text_pair=COLUMN for pairs"
            raise DataError(message, "COLUMN is a name of the header, or a number from 0")
        found[name] = int(column) if column.isdecimal() else column
    return Columns(text=found.get("text", "text"), text_pair=found.get("text_pair"), label=None)
