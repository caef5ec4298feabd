"""A data file becomes records: the wanted fields of each row, with the number of its line.

csv follows RFC 4180 (quotes matter). tsv has no quoting at all, as in GLUE and THUCNews: a line is
split at tabs and nothing else. jsonl is one object a line. semeval is the form of SemEval-2010
task 8: number and quoted sentence, relation, comment, blank line. text is a text a line. documents
is a segment of text a line with blank lines between documents; a row is a document, its segments
apart by line ends. All are UTF-8, with or without a byte order mark, with LF or CRLF. Blank lines
are no rows.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, groupby, islice
from pathlib import Path

from pipework.errors import DataError


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


Column = str | int
SENTENCE = re.compile(r'[0-9]+\t"(.*)"\s*')
SEGMENTS = 1000  # of a document that is held in memory; a longer one counts as several
HINT = "a record of SemEval-2010 task 8 is sentence, relation, comment and a blank line"


class Format(StrEnum):
    """How rows lie in a file."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    SEMEVAL = "semeval"
    TEXT = "text"
    DOCUMENTS = "documents"


SUFFIXES = {".csv": Format.CSV, ".tsv": Format.TSV, ".txt": Format.TSV, ".jsonl": Format.JSONL}


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Where the fields lie: by name, or by number counted from 0.

    `entities` is a key of jsonl, whose value is [[start, end], [start, end]].
    """

    text: Column = "text"
    text_pair: Column | None = None
    label: Column | None = "label"
    entities: Column | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The fields of a row as they lie in the file; None for one that is not wanted."""

    line: int
    text: object
    text_pair: object = None
    label: object = None
    entities: object = None


def format_of(path: Path) -> Format:
    """Tell the format from the suffix.

    Raises:
        DataError: it cannot be told.
    """
    if path.suffix not in SUFFIXES:
        message = f"{path}: cannot tell the format from the suffix {path.suffix!r}"
        raise DataError(message, f"set data.format to one of {', '.join(Format)}")
    return SUFFIXES[path.suffix]


def records(path: Path, how: Format, columns: Columns, *, header: bool) -> Iterator[Record]:
    """Read the rows of a file in order.

    Raises:
        DataError: for a file that is missing or not UTF-8, or a row that is not what the format
            wants; the message starts with file:line.
    """
    match how:
        case Format.JSONL:
            return _jsonl(path, columns)
        case Format.SEMEVAL:
            return _semeval(path, labelled=columns.label is not None)
        case Format.TEXT:
            return _text(path)
        case Format.DOCUMENTS:
            return _documents(path)
        case Format.CSV:
            return _table(path, _csv_rows(path), columns, header=header)
        case Format.TSV:
            lines = numbered_lines(path)
            cells = ((line, text.split("\t")) for line, text in lines if text)
            return _table(path, cells, columns, header=header)


def _table(
    path: Path, rows: Iterator[tuple[int, list[str]]], columns: Columns, *, header: bool
) -> Iterator[Record]:
    first = next(rows, None)
    if first is None:
        message = f"{path} is empty: expected rows"
        raise DataError(message, "check the path")
    width = len(first[1])
    names = first[1] if header else []
    wanted = {
        field: _index(path, getattr(columns, field), names, width)
        for field in ("text", "text_pair", "label", "entities")
    }
    present = {field: index for field, index in wanted.items() if index is not None}
    for line, cells in rows if header else chain([first], rows):
        if len(cells) != width:
            message = (
                f"{path}:{line}: expected {width} columns as in the first line, found {len(cells)}"
            )
            hint = "a stray separator or quote; in tsv a text may hold no tab"
            raise DataError(message, hint)
        yield Record(line=line, **{field: cells[index] for field, index in present.items()})


def _index(path: Path, column: Column | None, names: Sequence[str], width: int) -> int | None:
    if column is None or (isinstance(column, int) and 0 <= column < width):
        return column
    if isinstance(column, int) or column not in names:
        found = ", ".join(names) if names else f"{width} columns, no header"
        message = f"{path}:1: no column {column!r}; found {found}"
        raise DataError(message, "set data.columns to names or numbers (from 0) of the file")
    return names.index(column)


def _jsonl(path: Path, columns: Columns) -> Iterator[Record]:
    fields = ("text", "text_pair", "label", "entities")
    wanted = {field: str(getattr(columns, field)) for field in fields}
    wanted = {field: key for field, key in wanted.items() if getattr(columns, field) is not None}
    for line, text in numbered_lines(path):
        if not text:
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            message = f"{path}:{line}: not JSON: {error}"
            raise DataError(message) from error
        if not isinstance(row, dict):
            message = f"{path}:{line}: expected an object, found {type(row).__name__}"
            raise DataError(message)
        missing = [key for key in wanted.values() if row.get(key) is None]
        if missing:
            message = f"{path}:{line}: expected a value at {missing[0]!r}, found nothing"
            raise DataError(message, f"keys of this row: {', '.join(row)}")
        yield Record(line=line, **{field: row[key] for field, key in wanted.items()})


def _semeval(path: Path, *, labelled: bool) -> Iterator[Record]:
    for blank, group in groupby(numbered_lines(path), key=lambda one: not one[1].strip()):
        if not blank:
            yield _semeval_record(path, list(group), labelled=labelled)


def _semeval_record(path: Path, lines: Sequence[tuple[int, str]], *, labelled: bool) -> Record:
    texts = [text for _, text in lines]
    sentence, below = SENTENCE.fullmatch(texts[0]), texts[1:]
    if sentence is None:
        message = f'{path}:{lines[0][0]}: expected NUMBER<TAB>"SENTENCE", found {texts[0][:40]!r}'
        raise DataError(message, HINT)
    if len(below) != 2 or not below[1].startswith("Comment:"):  # noqa: PLR2004  (relation, comment)
        found = " / ".join(text[:30] for text in below) or "nothing"
        message = f"{path}:{lines[0][0]}: expected relation and Comment: below this, found {found}"
        raise DataError(message, HINT)
    return Record(line=lines[0][0], text=sentence[1], label=below[0] if labelled else None)


def _text(path: Path) -> Iterator[Record]:
    return (Record(line=line, text=text) for line, text in numbered_lines(path) if text.strip())


def _documents(path: Path) -> Iterator[Record]:
    for blank, group in groupby(numbered_lines(path), key=lambda one: not one[1].strip()):
        while not blank and (lines := list(islice(group, SEGMENTS))):
            yield Record(line=lines[0][0], text="\n".join(text for _, text in lines))


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
