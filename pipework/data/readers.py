"""Read the rows of a data file: the requested fields with the line number.

csv follows RFC 4180 (with quoting). tsv has no quoting, as in GLUE and THUCNews: a line is split
only at tabs. `Dialect` changes both. jsonl, json, parquet and arrow have fields, see
`pipework.data.fields`. fasttext has the labels of a line as words with the prefix __label__. folder
has a folder for each label, and a file for each text. semeval is the format of SemEval-2010 task 8:
number and quoted sentence, relation, comment, blank line. conll has a token per line, whose tag is
the last word of the line, and blank lines between texts; see `_conll_record`. text has a text per
line. documents has a segment of text per line and blank lines between documents; a row is a
document, its segments joined by line feeds. Blank lines are skipped.
"""

import csv
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, chain, count, groupby, islice
from pathlib import Path
from unicodedata import east_asian_width

from pipework.data.fields import annotators_differ, cell_text, numbered_objects, values_at
from pipework.data.text_files import numbered_lines
from pipework.errors import DataError
from pipework.run_folder.files import data_suffix
from pipework.run_folder.read_options import Column, Format, Reading, ReadOptions
from pipework.tasks.registry import task_type
from pipework.tasks.spans import spans_of_tokens

# The first character of a formula in a spreadsheet:
# https://owasp.org/www-community/attacks/CSV_Injection
FORMULA = tuple("=+-@\t\r")
# A number with a sign, also with commas, blanks between thousands and a unit; no formula.
NUMBER = re.compile(r"[+-]?\d[\d.,\s]*(?:[eE][+-]?\d+)?\s?[€$£%]?")
MAX_FIELD = 10_000_000  # characters of a csv field; a quote without its end takes the whole file
SENTENCE = re.compile(r'[0-9]+\t"(.*)"\s*')
MAX_SEGMENTS = 1000  # per document, to bound memory; a longer document is split
HINT = "a record of SemEval-2010 task 8 is a sentence, a relation, a comment and a blank line"
FIELDS = ("text", "text_pair", "label", "entities")
WITHOUT_COLUMNS = (
    Format.FASTTEXT,
    Format.FOLDER,
    Format.SEMEVAL,
    Format.CONLL,
    Format.TEXT,
    Format.DOCUMENTS,
)
TABLES = (Format.CSV, Format.TSV)
SUFFIXES = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
    ".txt": Format.TSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
    ".conll": Format.CONLL,
    ".bio": Format.CONLL,
}
CONVERT = "convert it to csv, jsonl or parquet"
REFUSED = {
    ".xlsx": "save it as CSV UTF-8",
    ".xls": "save it as CSV UTF-8",
    ".ods": "save it as CSV UTF-8",
    ".pkl": f"{CONVERT}, with to_parquet of pandas",
    ".tar": "unpack it, and name the data files",
    ".xml": CONVERT,
    ".html": CONVERT,
    ".yaml": CONVERT,
    ".orc": CONVERT,
    ".avro": CONVERT,
    ".sqlite": CONVERT,
    ".db": CONVERT,
}
BLANKS = re.compile(r"[ \t]+")
FASTTEXT_LABEL = re.compile(r"(?<!\S)__label__(\S+)\s*")


def safe_cell(value: object) -> str:
    """Return a value as a csv cell that no spreadsheet computes: text after an apostrophe."""
    cell = str(value)
    return f"'{cell}" if cell.startswith(FORMULA) and not NUMBER.fullmatch(cell) else cell


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRow:
    """The unparsed fields of a row; None for a field that was not requested.

    `disputed` means that several annotators gave different labels.
    """

    line: int
    text: object
    text_pair: object = None
    label: object = None
    entities: object = None
    group: object = None
    disputed: bool = False


def format_from_suffix(path: Path) -> Format:
    """Return the format for the suffix of a file.

    Raises:
        DataError: the suffix is unknown.
    """
    if path.is_dir():
        return Format.FOLDER
    suffix = data_suffix(path)
    if suffix not in SUFFIXES:
        message = f"{path}: no file format is known for the suffix {suffix!r}"
        hint = f"rename it to {', '.join(SUFFIXES)}, or set data.format: {', '.join(Format)}"
        raise DataError(message, REFUSED.get(suffix, hint))
    return SUFFIXES[suffix]


def read_rows(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    """Return the rows of a file in order.

    Raises:
        DataError: the file is missing or not in its encoding, or a row does not match the format;
            the message starts with file:line.
    """
    readers = {
        Format.CSV: _table,
        Format.TSV: _table,
        Format.FASTTEXT: _fasttext,
        Format.FOLDER: _folder,
        Format.SEMEVAL: _semeval,
        Format.CONLL: _conll,
        Format.TEXT: _text,
        Format.DOCUMENTS: _documents,
    }
    return readers.get(options.format, _fields)(path, options)


def table_delimiter(options: ReadOptions) -> str:
    """Return the text between the columns of csv or tsv."""
    return options.dialect.delimiter or ("," if options.format is Format.CSV else "\t")


def table_has_quotes(options: ReadOptions) -> bool:
    """Return whether the columns of csv or tsv may be quoted."""
    quoting = options.dialect.quoting
    return options.format is Format.CSV if quoting is None else quoting


def _split_lines(path: Path, options: ReadOptions) -> Generator[tuple[int, list[str]]]:
    delimiter = table_delimiter(options)
    lines = numbered_lines(path, options.dialect.encoding)
    if table_has_quotes(options):
        yield from _csv_rows(path, lines, delimiter)
        return
    for line, text in lines:
        if text:
            yield line, text.split(delimiter)


def _table(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    # An error keeps the rows in its traceback, which would leave the file open.
    with closing(_split_lines(path, options)) as rows:
        first = next(rows, None)
        if first is None:
            message = f"{path} is empty, expected rows"
            raise DataError(message, "check the path")
        width = len(first[1])
        names = first[1] if options.header else []
        indices = {
            field: _index(path, field, column, names, width, options.dialect.delimiter)
            for field, column in _wanted(options).items()
        }
        for line, cells in rows if options.header else chain([first], rows):
            if len(cells) != width:
                expected = f"expected {width} columns as in the first line, found {len(cells)}"
                message = f"{path}:{line}: {expected}"
                hint = "look for an extra separator or quote; in tsv a text may not contain a tab"
                raise DataError(message, hint)
            values: dict[str, object] = {name: cells[index] for name, index in indices.items()}
            yield _raw_row(line, values, options)


def _wanted(options: ReadOptions) -> dict[str, Column]:
    """Return the columns of the fields; of a label in several columns, each by its own name."""
    wanted = dict[str, Column]()
    for field in (*FIELDS, "group"):
        column: Column | tuple[Column, ...] | None = getattr(options, field)
        if isinstance(column, tuple):
            wanted |= {f"{field} {name}": name for name in column}
        elif column is not None:
            wanted[field] = column
    return wanted


def _raw_row(
    line: int, values: dict[str, object], options: ReadOptions, *, disputed: bool = False
) -> RawRow:
    """Return a row from the values of `_wanted`."""
    if isinstance(options.label, tuple):
        values["label"] = {str(name): values.pop(f"label {name}") for name in options.label}
    return RawRow(line=line, disputed=disputed, **values)


def _fields(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    wanted, task = _wanted(options), task_type(options.kind)
    for line, row in numbered_objects(path, options, tuple(wanted.values())):
        values, disputed = dict[str, object](), False
        for name, column in wanted.items():
            label = name.startswith("label")
            found = values_at(row, column, annotations=label)
            answers = [value for value in found if value is not None]
            values[name] = answers[0] if answers else None
            if len(answers) > 1:
                values[name] = task.agreed(answers)
            disputed |= label and annotators_differ(row, column)
            if values[name] is None and not (label and options.skip_unlabelled):
                nothing = "null" if found else "nothing"
                reason = f"different labels, none most often: {answers}" if answers else nothing
                at = f"{path}:{line}"
                raise _no_value(at, name.partition(" ")[0], column, row, reason)
        yield _raw_row(line, values, options, disputed=disputed)


def _no_value(at: str, field: str, column: Column, row: Iterable[str], reason: str) -> DataError:
    message = f"{at}: expected a value at {_column(field, column)}, found {reason}"
    skip = ", or data.skip_unlabelled = true" if field == "label" else ""
    return DataError(message, f"keys of this row: {_names(row)}; {_setting(field)} to a key{skip}")


def _names(names: Iterable[str]) -> str:
    """Return names of columns for a message, in quotes if they have blanks."""
    return ", ".join(name if name and not re.search(r"\s", name) else repr(name) for name in names)


def read_cells(path: Path, options: ReadOptions) -> tuple[list[str], Iterator[list[str]]]:
    """Return the names and the rows of all columns of a file with columns.

    Without a header the names are column_0, column_1, ... In a format with fields, the columns are
    the keys of all rows, and a value that is not a text is written as JSON.
    """
    if options.format not in TABLES:
        keys = list(dict.fromkeys(key for _, row in numbered_objects(path, options) for key in row))
        rows = numbered_objects(path, options)
        return keys, ([cell_text(row.get(key)) for key in keys] for _, row in rows)
    cells = (cells for _, cells in _split_lines(path, options))
    first = next(cells, [])
    if options.header:
        return first, cells
    return [f"column_{number}" for number in range(len(first))], chain([first], cells)


def column_names(path: Path, options: ReadOptions) -> list[str]:
    """Return the names in the header of a file, or the keys of its rows; none without columns.

    Raises:
        DataError: as `read_rows`.
    """
    if options.format in WITHOUT_COLUMNS:
        return []
    return read_cells(path, options.model_copy(update={"header": True}))[0]


def _index(
    path: Path, field: str, column: Column, names: Sequence[str], width: int, delimiter: str | None
) -> int:
    field = field.partition(" ")[0]
    if isinstance(column, int) and 0 <= column < width:
        return column
    bare = [name if name == column else name.strip() for name in names]
    if isinstance(column, int) or column not in bare:
        present = _names(names) if names else f"{width} columns, no header"
        message = f"{path}:1: no column {_column(field, column)}; found {present}"
        other = f"{_setting(field)} to a column name or number (from 0)"
        hint = _separator_hint(names, delimiter) or other
        raise DataError(message, hint)
    if bare.count(column) > 1:
        message = f"{path}:1: expected one column {column!r}, found {bare.count(column)}"
        raise DataError(message, f"{_setting(field)} to a column number (from 0)")
    return bare.index(column)


def _column(field: str, column: Column) -> str:
    """Quote the name of a column, and add whether it is the default."""
    is_default = field != "group" and column == Reading.model_fields[field].default
    return f"{column!r} (the default name)" if is_default else repr(column)


def _setting(field: str) -> str:
    if field == "entities":
        return "set data.columns.entities"
    if field == "group":
        return "set data.group"
    commands = "eval" if field == "label" else "predict, eval and bench"
    return f"set data.columns.{field}, or --columns of pipe {commands},"


def _separator_hint(names: Sequence[str], delimiter: str | None) -> str | None:
    """Return a hint if the only name in a header contains another separator, or is no header.

    `delimiter` is the value of data.delimiter.
    """
    header = names[0] if len(names) == 1 else ""
    if header.startswith("__label__"):
        return 'the labels are those of fastText: set data.format = "fasttext"'
    if header.startswith("sep="):
        return "remove the first line, and set data.delimiter"
    for separator, name, suffix in (("\t", "tabs", "tsv"), (",", "commas", "csv")):
        if separator in header and delimiter is not None:
            return f"convert the file: its columns are separated by {name}, not by {delimiter!r}"
        if separator in header:
            setting = f'set data.format = "{suffix}", or rename the file to .{suffix}'
            return f"the columns are separated by {name}: {setting}"
    for separator, name in ((";", "semicolons"), ("|", "vertical bars")):
        if separator in header:
            setting = f'set data.delimiter = "{separator}", or convert the file to commas or tabs'
            return f"the columns are separated by {name}: {setting}"
    return None


def _fasttext(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    for line, text in numbered_lines(path, options.dialect.encoding):
        if text.strip():
            labels = None if options.label is None else FASTTEXT_LABEL.findall(text)
            yield RawRow(line=line, text=FASTTEXT_LABEL.sub("", text).strip(), label=labels)


def _folder(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    """Yield a row for each file below the folders of the labels, in the order of their paths."""
    found = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    folders = [entry for entry in found if entry.is_dir()]
    if not folders:
        message = f"{path}: expected a folder for each label, found {len(found)} files"
        raise DataError(message, "name one data file, or put the texts of each label in a folder")
    number = count(1)
    for folder in folders:
        for file in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            if file.suffix in SUFFIXES and SUFFIXES[file.suffix] not in TABLES:
                message = f"{path}: expected texts below folders of labels, found {file}"
                raise DataError(message, "name one file; pipe predict --in reads folders of them")
            lines = (text for _, text in numbered_lines(file, options.dialect.encoding))
            label = None if options.label is None else folder.name
            yield RawRow(line=next(number), text="\n".join(lines), label=label)


def _semeval(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    lines = numbered_lines(path, options.dialect.encoding)
    labelled = options.label is not None
    for blank, group in groupby(lines, key=lambda line: not line[1].strip()):
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


def _conll(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    lines = numbered_lines(path, options.dialect.encoding)
    for blank, group in groupby(lines, key=lambda line: not line[1].strip()):
        record = [] if blank else [line for line in group if not line[1].startswith("-DOCSTART-")]
        if record:
            yield _conll_record(path, record, labelled=options.label is not None)


def _conll_record(path: Path, lines: Sequence[tuple[int, str]], *, labelled: bool) -> RawRow:
    """Return a text and its spans.

    Tokens are joined by blanks; in a text of single characters of a script without blanks, such as
    Chinese, by nothing.
    """
    words = [BLANKS.split(text.strip(" \t")) for _, text in lines]
    for (line, text), cells in zip(lines, words, strict=True):
        if len(cells) < 1 + labelled:
            message = f"{path}:{line}: expected a token and its tag, found {text[:40]!r}"
            raise DataError(message, "separate them by a tab or a blank, and texts by a blank line")
    tokens = [cells[0] for cells in words]
    characters = max(map(len, tokens)) == 1 and "W" in map(east_asian_width, tokens)
    separator = "" if characters else " "
    ends = [*accumulate(len(token) + len(separator) for token in tokens)]
    places = [
        (end - len(separator) - len(token), end - len(separator))
        for token, end in zip(tokens, ends, strict=True)
    ]
    spans = spans_of_tokens([cells[-1] for cells in words], places) if labelled else None
    return RawRow(line=lines[0][0], text=separator.join(tokens), label=spans)


def _text(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    lines = numbered_lines(path, options.dialect.encoding)
    return (RawRow(line=line, text=text) for line, text in lines if text.strip())


def _documents(path: Path, options: ReadOptions) -> Iterator[RawRow]:
    lines = numbered_lines(path, options.dialect.encoding)
    for blank, group in groupby(lines, key=lambda line: not line[1].strip()):
        while not blank and (part := list(islice(group, MAX_SEGMENTS))):
            yield RawRow(line=part[0][0], text="\n".join(text for _, text in part))


def _csv_rows(
    path: Path, lines: Iterator[tuple[int, str]], delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader((text + "\n" for _, text in lines), strict=True, delimiter=delimiter)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        message = f"{path}:{reader.line_num}: not CSV: {error}"
        hint = 'if quotes are part of the text, set data.quoting = false, or data.format = "tsv"'
        raise DataError(message, hint) from error
