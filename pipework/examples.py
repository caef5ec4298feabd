"""Rows of a data file become examples. An error names the file and the line.

csv follows RFC 4180 (quotes matter). tsv has no quoting at all, as in GLUE and THUCNews: a line is
split at tabs and nothing else. jsonl is one object a line. All are UTF-8, with or without a byte
order mark, with LF or CRLF.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path

from pipework.errors import DataError

Column = str | int
Cells = Sequence[str] | Mapping[str, str]


class Format(StrEnum):
    """How rows lie in a file."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One text, or a pair, with its label where it has one."""

    text: str
    text_pair: str | None = None
    label: str | None = None


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

    def rows(self) -> Iterator[Example]:
        """Read the rows in order.

        Raises:
            DataError: for a file that is missing or not UTF-8, a row with too few or too many
                fields, or an empty label; the message starts with file:line.
        """
        match self.format or _format_of(self.path):
            case Format.JSONL:
                return self._jsonl()
            case Format.CSV:
                return self._table(_csv_rows(self.path))
            case Format.TSV:
                return self._table(
                    (line, text.split("\t")) for line, text in numbered_lines(self.path)
                )

    def _table(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Example]:
        wanted = (self.columns.text, self.columns.text_pair, self.columns.label)
        named = any(isinstance(column, str) for column in wanted)
        first = next(rows, None)
        if first is None:
            message = f"{self.path} is empty: expected rows"
            raise DataError(message, "check the path")
        names: list[str] = []
        if self.header if self.header is not None else named:
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
        return Example(text=text or "", text_pair=text_pair, label=label)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without its line end) of a UTF-8 file; blank lines skipped.

    Only LF ends a line (a CR before it goes too): U+2028 and its kind belong to the text.
    """
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\n")
                if text := text.removesuffix("\r"):
                    yield number, text
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message, "check data.root and the file names") from error
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 (byte {error.start} of a line: {error.reason})"
        raise DataError(message, "convert it: iconv -f GB18030 -t UTF-8") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (text + "\n" for _, text in numbered_lines(path))
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
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

    Files often hold numbers, with the names beside them in a list. None where it is neither.
    """
    if found in labels:
        return labels[found]
    if re.fullmatch(r"[0-9]{1,9}", found) and int(found) < len(labels):
        return int(found)
    return None


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
