"""Read the rows of a data file: the requested fields with the line number.

csv follows RFC 4180 (with quoting). tsv has no quoting, as in GLUE and THUCNews: a line is split
only at tabs. jsonl has an object per line. semeval is the format of SemEval-2010 task 8: number
and quoted sentence, relation, comment, blank line. text has a text per line. documents has a
segment of text per line and blank lines between documents; a row is a document, its segments
joined by line feeds. All are UTF-8, with or without a byte order mark, with LF or CRLF. Blank
lines are skipped.
"""

import csv
import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from io import BytesIO
from itertools import chain, groupby, islice
from pathlib import Path

from pipework.errors import DataError, InputError

Column = str | int
UNPACK = "unpack it first, for example with gunzip or unzip"
PREDICT = "pipe predict RUN --in FILES --out FOLDER reads parquet"
BINARY_FILES = (((b"\x1f\x8b", b"PK\x03\x04"), "packed", UNPACK), ((b"PAR1",), "parquet", PREDICT))
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Three Chinese characters: letters of Western European words have ASCII letters next to them.
GB18030_WORDS = re.compile(rb"(?:[\x81-\xfe][\x40-\x7e\x80-\xfe]){3}")
# The first character of a formula in a spreadsheet:
# https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = tuple("=+-@\t\r")
MAX_FIELD = 10_000_000  # characters of a csv field; a quote without its end takes the whole file
SENTENCE = re.compile(r'[0-9]+\t"(.*)"\s*')
MAX_SEGMENTS = 1000  # per document, to bound memory; a longer document is split
HINT = "a record of SemEval-2010 task 8 is a sentence, a relation, a comment and a blank line"
FIELDS = ("text", "text_pair", "label", "entities")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without line end) for each line of a UTF-8 file.

    Only LF and CRLF end a line: U+2028 and similar characters belong to the text.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with BytesIO(_pipe_content(path)) if path.is_fifo() else path.open("rb") as stream:
            yield from decoded_lines(stream, str(path))
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message, "check the path and its permissions") from error


@lru_cache(maxsize=1)
def _pipe_content(path: Path) -> bytes:
    """Return the content of a pipe, which can be read only once but is needed several times."""
    return path.read_bytes()


def decoded_lines(lines: Iterable[bytes], where: str) -> Iterator[tuple[int, str]]:
    """Decode lines as `numbered_lines` does; `where` names their source in errors."""
    for number, raw in enumerate(lines, start=1):
        if number == 1:
            check_text(raw, where)
        try:
            text = decoded_line(raw, mark=number == 1)
        except InputError as error:
            message = f"{where}:{number}: {error}"
            raise DataError(message, _encoding_hint(raw)) from error
        yield number, text


def decoded_line(line: bytes, *, mark: bool) -> str:
    """Return the text of a line without its end, and with `mark` without a byte order mark.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        text = line.decode("utf-8-sig" if mark else "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 (byte {error.start}: {error.reason})"
        raise InputError(message) from error
    return text.removesuffix("\n").removesuffix("\r")


def check_text(line: bytes, where: str) -> None:
    """Check that a first line does not belong to a packed file or another binary format."""
    for marks, kind, hint in BINARY_FILES:
        if line.startswith(marks):
            message = f"{where}:1: expected text, found a {kind} file"
            raise DataError(message, hint)
    if b"\0" in line and not line.startswith(UTF16_MARKS):  # NUL is valid UTF-8
        utf16 = not any(line[1:16:2]) or not any(line[0:16:2])
        hint = _encoding_hint(UTF16_MARKS[0]) if utf16 else "check the path"
        message = f"{where}:1: expected text, found the character NUL"
        raise DataError(message, hint)


def _encoding_hint(line: bytes) -> str:
    """Name the probable encoding of a line that is not UTF-8."""
    encoding = "WINDOWS-1252"
    if line.startswith(UTF16_MARKS):
        encoding = "UTF-16"
    elif GB18030_WORDS.search(line):
        with suppress(UnicodeDecodeError):
            line.decode("gb18030")
            encoding = "GB18030"
    return f"convert it, probably: iconv -f {encoding} -t UTF-8 FILE > NEW"


def safe_cell(value: object) -> str:
    """Return a value as a csv cell that no spreadsheet computes: text after an apostrophe."""
    cell = str(value)
    if not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


class Format(StrEnum):
    """The format of a data file."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    SEMEVAL = "semeval"
    TEXT = "text"
    DOCUMENTS = "documents"


WITHOUT_COLUMNS = (Format.SEMEVAL, Format.TEXT, Format.DOCUMENTS)
SUFFIXES = {".csv": Format.CSV, ".tsv": Format.TSV, ".txt": Format.TSV, ".jsonl": Format.JSONL}


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns of the fields, by name or by number from 0.

    `entities` is a key of jsonl with the value [[start, end], [start, end]].
    """

    text: Column = "text"
    text_pair: Column | None = None
    label: Column | None = "label"
    entities: Column | None = None

    def named(self) -> "Columns":
        """Return the columns of texts with the default names instead of numbers."""
        pair = "text_pair" if isinstance(self.text_pair, int) else self.text_pair
        return replace(
            self, text="text" if isinstance(self.text, int) else self.text, text_pair=pair
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """The unparsed fields of a row; None for a field that was not requested."""

    line: int
    text: object
    text_pair: object = None
    label: object = None
    entities: object = None


def format_from_suffix(path: Path) -> Format:
    """Return the format for the suffix of a file.

    Raises:
        DataError: the suffix is unknown.
    """
    if path.suffix not in SUFFIXES:
        message = f"{path}: no file format is known for the suffix {path.suffix!r}"
        hint = f"rename it to {', '.join(SUFFIXES)}, or set data.format: {', '.join(Format)}"
        raise DataError(message, PREDICT if path.suffix == ".parquet" else hint)
    return SUFFIXES[path.suffix]


def read_rows(
    path: Path, file_format: Format, columns: Columns, *, header: bool
) -> Iterator[RawRow]:
    """Return the rows of a file in order.

    Raises:
        DataError: the file is missing or not UTF-8, or a row does not match the format; the
            message starts with file:line.
    """
    match file_format:
        case Format.JSONL:
            return _jsonl(path, columns)
        case Format.SEMEVAL:
            return _semeval(path, labelled=columns.label is not None)
        case Format.TEXT:
            return _text(path)
        case Format.DOCUMENTS:
            return _documents(path)
        case Format.CSV | Format.TSV:
            return _table(path, file_format, columns, header=header)


def _split_lines(path: Path, file_format: Format) -> Generator[tuple[int, list[str]]]:
    if file_format is Format.CSV:
        yield from _csv_rows(path)
        return
    for line, text in numbered_lines(path):
        if text:
            yield line, text.split("\t")


def _table(path: Path, file_format: Format, columns: Columns, *, header: bool) -> Iterator[RawRow]:
    # An error keeps the rows in its traceback, which would leave the file open.
    with closing(_split_lines(path, file_format)) as rows:
        first = next(rows, None)
        if first is None:
            message = f"{path} is empty, expected rows"
            raise DataError(message, "check the path")
        width = len(first[1])
        names = first[1] if header else []
        indices = {field: _index(path, field, columns, names, width) for field in FIELDS}
        present = {field: index for field, index in indices.items() if index is not None}
        for line, cells in rows if header else chain([first], rows):
            if len(cells) != width:
                expected = f"expected {width} columns as in the first line, found {len(cells)}"
                message = f"{path}:{line}: {expected}"
                hint = "look for an extra separator or quote; in tsv a text may not contain a tab"
                raise DataError(message, hint)
            yield RawRow(line=line, **{field: cells[index] for field, index in present.items()})


def read_cells(
    path: Path, file_format: Format, *, header: bool
) -> tuple[list[str], Iterator[list[str]]]:
    """Return the names and the rows of all columns of a csv, tsv or jsonl file.

    Without a header the names are column_0, column_1, ... In jsonl, the columns are the keys of all
    rows, and a value that is not a text is written as JSON.
    """
    if file_format is Format.JSONL:
        keys = list(dict.fromkeys(key for _, row in _json_rows(path) for key in row))
        rows = ([cell_text(row.get(key)) for key in keys] for _, row in _json_rows(path))
        return keys, rows
    cells = (cells for _, cells in _split_lines(path, file_format))
    first = next(cells, [])
    if header:
        return first, cells
    return [f"column_{number}" for number in range(len(first))], chain([first], cells)


def column_names(path: Path, file_format: Format | None) -> list[str]:
    """Return the names in the header of a file, or the keys of its rows; none without columns.

    Raises:
        DataError: as `read_rows`; or the format is not given, and the suffix is unknown.
    """
    known = file_format or format_from_suffix(path)
    return [] if known in WITHOUT_COLUMNS else read_cells(path, known, header=True)[0]


def cell_text(value: object) -> str:
    """Return a value of jsonl as the cell of a table."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _index(
    path: Path, field: str, columns: Columns, names: Sequence[str], width: int
) -> int | None:
    column: Column | None = getattr(columns, field)
    if column is None or (isinstance(column, int) and 0 <= column < width):
        return column
    if isinstance(column, int) or column not in names:
        present = ", ".join(names) if names else f"{width} columns, no header"
        message = f"{path}:1: no column {_column(field, column)}; found {present}"
        hint = _separator_hint(names) or f"{_setting(field)} to a column name or number (from 0)"
        raise DataError(message, hint)
    if names.count(column) > 1:
        message = f"{path}:1: expected one column {column!r}, found {names.count(column)}"
        raise DataError(message, f"{_setting(field)} to a column number (from 0)")
    return names.index(column)


def _column(field: str, column: Column) -> str:
    """Quote the name of a column, and add whether it is the default."""
    is_default = column == getattr(Columns(), field)
    return f"{column!r} (the default name)" if is_default else repr(column)


def _setting(field: str) -> str:
    if field == "entities":
        return "set data.columns.entities"
    commands = "eval" if field == "label" else "predict, eval and bench"
    return f"set data.columns.{field}, or --columns of pipe {commands},"


def _separator_hint(names: Sequence[str]) -> str | None:
    """Return a hint if the only name in a header contains another separator."""
    header = names[0] if len(names) == 1 else ""
    for separator, name, suffix in (("\t", "tabs", "tsv"), (",", "commas", "csv")):
        if separator in header:
            setting = f'set data.format = "{suffix}", or rename the file to .{suffix}'
            return f"the columns are separated by {name}: {setting}"
    if ";" in header:
        return "the columns are separated by semicolons: convert the file to commas or tabs"
    return None


def _jsonl(path: Path, columns: Columns) -> Iterator[RawRow]:
    keys = {field: str(getattr(columns, field)) for field in FIELDS}
    keys = {field: key for field, key in keys.items() if getattr(columns, field) is not None}
    for line, row in _json_rows(path):
        missing = next((field for field, key in keys.items() if row.get(key) is None), None)
        if missing is not None:
            key = _column(missing, keys[missing])
            message = f"{path}:{line}: expected a value at {key}, found nothing"
            raise DataError(
                message, f"keys of this row: {', '.join(row)}; {_setting(missing)} to a key"
            )
        yield RawRow(line=line, **{field: row[key] for field, key in keys.items()})


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for line, text in numbered_lines(path):
        if not text:
            continue
        try:
            row = parse_object(text)
        except InputError as error:
            message = f"{path}:{line}: {error}"
            raise DataError(message) from error
        yield line, row


def parse_object(text: str) -> dict[str, object]:
    """Return the object of a line of jsonl.

    Raises:
        InputError: the line is not a JSON object.
    """
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"not JSON: {error}"
        raise InputError(message) from error
    if not isinstance(row, dict):
        message = f"expected an object, found {type(row).__name__}"
        raise InputError(message)
    return row


def _semeval(path: Path, *, labelled: bool) -> Iterator[RawRow]:
    for blank, group in groupby(numbered_lines(path), key=lambda line: not line[1].strip()):
        if not blank:
            yield _semeval_record(path, list(group), labelled=labelled)


def _semeval_record(path: Path, lines: Sequence[tuple[int, str]], *, labelled: bool) -> RawRow:
    texts = [text for _, text in lines]
    sentence, rest = SENTENCE.fullmatch(texts[0]), texts[1:]
    if sentence is None:
        message = f'{path}:{lines[0][0]}: expected NUMBER<TAB>"SENTENCE", found {texts[0][:40]!r}'
        raise DataError(message, HINT)
    if len(rest) != 2 or not rest[1].startswith("Comment:"):  # noqa: PLR2004  (relation, comment)
        found = " / ".join(text[:30] for text in rest) or "nothing"
        message = f"{path}:{lines[0][0]}: expected relation and Comment: next, found {found}"
        raise DataError(message, HINT)
    return RawRow(line=lines[0][0], text=sentence[1], label=rest[0] if labelled else None)


def _text(path: Path) -> Iterator[RawRow]:
    return (RawRow(line=line, text=text) for line, text in numbered_lines(path) if text.strip())


def _documents(path: Path) -> Iterator[RawRow]:
    for blank, group in groupby(numbered_lines(path), key=lambda line: not line[1].strip()):
        while not blank and (lines := list(islice(group, MAX_SEGMENTS))):
            yield RawRow(line=lines[0][0], text="\n".join(text for _, text in lines))


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (text + "\n" for _, text in numbered_lines(path))
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        message = f"{path}:{reader.line_num}: not CSV: {error}"
        raise DataError(
            message, 'if quotes are part of the text, set data.format = "tsv"'
        ) from error
