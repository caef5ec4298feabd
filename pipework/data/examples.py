"""Read examples from data files and validate them; errors name file and line."""

import re
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TypeVar, cast

from pipework.data.entities import Spans, check_spans, parse_marked_text, parse_spans
from pipework.data.holdout import held_out_digests, text_digest
from pipework.data.readers import WITHOUT_COLUMNS, RawRow, format_from_suffix, read_rows
from pipework.errors import DataError, InputError
from pipework.run_folder.manifest import Input, Part
from pipework.run_folder.read_options import Column, Format, Reading, ReadOptions
from pipework.tasks.labels import Label, label_names
from pipework.tasks.registry import task_type
from pipework.tasks.task import Task

T = TypeVar("T")

TEXTS = ("text", "text_pair")
SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A text, a pair of texts, or a text with two entities; the label is optional.

    Attributes:
        text: the text without entity tags.
        text_pair: the second text of a pair.
        entities: character spans [start, end) of the entities e1 and e2 in `text`.
        label: a label, the labels of a multi-label row (may be an empty tuple), or a number as
            written in the file.
        line: first line of the row in its file, from 1; None without a file.
        group: the value of the group of the row, if rows are held out by groups.
    """

    text: str
    text_pair: str | None = None
    entities: Spans | None = None
    label: Label | None = None
    line: int | None = field(default=None, compare=False)
    group: str | None = field(default=None, compare=False)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of labels of the row, for each kind of task; empty without a label."""
        return label_names(self.label)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data file and how to read it.

    Attributes:
        path: the file.
        reading: how it is read.
        part: the part of the file to read; None for the whole file.
        excluded: the splits `part.without`.
    """

    path: Path
    reading: Reading = field(default_factory=Reading)
    part: Part | None = None
    excluded: tuple["Source", ...] = ()

    @property
    def task(self) -> type[Task]:
        """The class of tasks whose labels the rows have."""
        return task_type(self.reading.kind)

    def read_options(self) -> ReadOptions:
        """Return the read options, with format and header resolved.

        Raises:
            DataError: the format is not set and the suffix is unknown.
        """
        reading = self.reading
        labels = reading.label if isinstance(reading.label, tuple) else (reading.label,)
        columns = (reading.text, reading.text_pair, *labels, self.part and self.part.group)
        named = any(isinstance(column, str) for column in columns)
        file_format = reading.format or format_from_suffix(self.path)
        fields = {name: getattr(reading, name) for name in Reading.model_fields}
        resolved = {
            "group": self.part and self.part.group,
            "format": file_format,
            "header": named if reading.header is None else reading.header,
            "marked": reading.marked or file_format is Format.SEMEVAL,
        }
        return ReadOptions(**fields | resolved)

    def reread(self, **changes: object) -> "Source":
        """Return a source of the same rows with other values of fields of `reading`."""
        return replace(self, reading=self.reading.model_copy(update=changes))

    def unlabelled(self) -> "Source":
        """Return a source of the same rows that ignores labels."""
        return replace(self, reading=self.read_options()).reread(label=None)

    def with_columns(self, option: str, fields: Collection[str] = TEXTS) -> "Source":
        """Return a source with the columns of an option, see `parse_columns`.

        Raises:
            DataError: the option is invalid, or names a second text for single texts.
        """
        columns = parse_columns(option, fields)
        if "text_pair" in columns and self.reading.text_pair is None:
            message = f"columns {option!r}: found text_pair, but this model classifies single texts"
            raise DataError(message, "name only the column of the text: --columns text=COLUMN")
        return self.reread(**columns, header=None)

    def whole(self) -> "Source":
        """Return a source of the whole file."""
        return replace(self, part=None, excluded=())

    def rows(self) -> Iterator[Example]:
        """Yield the rows in order; blank lines are skipped.

        Raises:
            DataError: the file is missing or not UTF-8, a row has too few or too many fields, a
                text is not valid Unicode or lacks its entity tags, a label is empty or not a
                number in a regression; the message starts with file:line. Also if the held-out
                part would be the whole file.
        """
        if self.part is None:
            return self._all()
        if self.part.limit is None:
            return self._allowed(self.part)
        return self._limited(self.part, self.part.limit)

    def _limited(self, part: Part, limit: int) -> Iterator[Example]:
        """Yield the rows with the smallest digests."""
        digests = (_digest(row, part.seed) for row in self._allowed(part))
        bound = max(nsmallest(limit, digests), default=b"")
        chosen = (row for row in self._allowed(part) if _digest(row, part.seed) <= bound)
        return islice(chosen, limit)  # copies of a text have the same digest

    def _allowed(self, part: Part) -> Iterator[Example]:
        """Yield the rows of a part without those whose text is in an excluded split."""
        rows = self._all() if part.rows is None else self._held_out(part, part.rows)
        if not self.excluded:
            return rows
        texts = {folded_text(row) for source in self.excluded for row in source.rows()}
        return (row for row in rows if folded_text(row) not in texts)

    def _all(self) -> Iterator[Example]:
        options = self.read_options()
        if options.format in WITHOUT_COLUMNS:  # the fields have their places
            options = options.model_copy(update={"text_pair": None, "entities": None})
            if options.group is not None:
                message = f"{self.path}: format {options.format} has no column {options.group!r}"
                raise DataError(message, "remove data.group, or convert the file to jsonl")
        # An error keeps the rows in its traceback, which would leave the file open.
        with closing(cast("Generator[RawRow]", read_rows(self.path, options))) as rows:
            for row in rows:
                if not self._skips(row.label):
                    yield self._example(row, marked=options.marked)

    def skipped_rows(self) -> int:
        """Return the number of rows of the file that are left out, because they have no label.

        Raises:
            DataError: as `rows`.
        """
        if not self._may_skip:
            return 0
        return sum(self._skips(row.label) for row in read_rows(self.path, self.read_options()))

    def disputed_rows(self) -> int:
        """Return the number of rows of the file whose annotators gave different labels.

        Raises:
            DataError: as `rows`.
        """
        if not re.search(r"\*|\.\d", str(self.reading.label)):  # items of a list
            return 0
        return sum(row.disputed for row in read_rows(self.path, self.read_options()))

    @property
    def _may_skip(self) -> bool:
        reading = self.reading
        return reading.label is not None and (reading.skip_unlabelled or bool(reading.no_label))

    def _skips(self, label: object) -> bool:
        """Return whether a row is left out, because it has no label."""
        if not self._may_skip:
            return False
        if isinstance(label, dict):
            return any(map(self._skips, label.values()))
        text = "" if label is None else str(label).strip()
        # An empty cell or list of a multi-label row is a row without any of the labels.
        blanks = ("", "nan") if self.task.rows_per_token else ("", "nan", "[]")
        empty = text in blanks and not self.task.many_labels
        if text in self.reading.no_label:
            return True
        return self.reading.skip_unlabelled and (label is None or empty)

    def _held_out(self, part: Part, size: int) -> Iterator[Example]:
        """Yield the held-out rows, or all other rows; a stratified part needs the labels.

        Copies of a text, or with groups the rows of a group, have the same digest, so that they are
        in the same part.
        """
        held_out = held_out_digests(
            (
                (_part_digest(row, part.seed), str(row.label) if part.stratified else "")
                for row in self._all()
            ),
            part,
        )
        if held_out is None:
            rows = sum(1 for _ in self._all())
            message = f"{self.path} holds {rows} rows: cannot hold out {size} of them"
            raise DataError(message, "lower data.dev_rows, data.test_rows or data.calibration_rows")
        empty = True
        for row in self._all():
            if (_part_digest(row, part.seed) in held_out) == part.held_out:
                empty = False
                yield row
        if empty and part.group is not None:
            message = f"{self.path}: the groups of data.group are too large: a part has no rows"
            raise DataError(message, "hold out fewer rows, or choose another column")

    def _example(self, row: RawRow, *, marked: bool) -> Example:
        try:
            return self.parse(row, marked=marked)
        except InputError as error:
            message = f"{self.path}:{row.line}: {error}"
            raise DataError(message, error.hint) from error

    def parse(self, row: RawRow, *, marked: bool = False) -> Example:
        """Return the example of a row; with `marked`, its text marks two entities.

        Raises:
            InputError: a field is missing or invalid.
        """
        text, text_pair = _text(row.text, self.reading.text), None
        if self.reading.text_pair is not None:
            text_pair = _text(row.text_pair, self.reading.text_pair)
        label = None
        if self.reading.label is not None:
            label = self.task.parse_label(row.label, self.reading.separator, self.reading.vector)
            label = self.task.fit_label(label, text)
        if row.group is not None and not str(row.group).strip():
            message = f"the group at {self.part and self.part.group!r} is empty"
            raise InputError(message, "fill it, or remove data.group")
        entities = None
        if marked:
            text, entities = parse_marked_text(text)
        elif self.reading.entities is not None:
            entities = check_spans(text, parse_spans(row.entities, self.reading.entities))
        return Example(
            text=text,
            text_pair=text_pair,
            entities=entities,
            label=label,
            line=row.line,
            group=None if row.group is None else str(row.group),
        )


def _text(value: object, column: Column) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        message = f"expected a string at {column!r}, found {type(value).__name__}"
        raise InputError(message)
    if SURROGATE.search(text := str(value)):
        message = "a text is not valid Unicode: it contains a lone surrogate (\\uD800)"
        raise InputError(message, "write the character itself, or both surrogates")
    return text


def folded_text(row: Example) -> int:
    """Return a hash of the text, or the pair, without regard to case and white space.

    It differs from process to process.
    """
    pair = row.text_pair
    folded = " ".join(row.text.casefold().split())
    return hash((folded, pair and " ".join(pair.casefold().split()), row.entities))


def _digest(row: Example, seed: int) -> bytes:
    return text_digest((row.text, row.text_pair, row.entities), seed)


def _part_digest(row: Example, seed: int) -> bytes:
    return _digest(row, seed) if row.group is None else text_digest((row.group,), seed)


def chunks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split rows into lists of `size`; the last may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def split_pair(line: str) -> Example:
    """Parse a text, or two texts separated by a tab."""
    text, tab, text_pair = line.partition("\t")
    return Example(text=text, text_pair=text_pair if tab else None)


def parse_columns(option: str, fields: Collection[str] = TEXTS) -> dict[str, Column]:
    """Parse `text=0,text_pair=1` or `text=sentence` to columns by field.

    Raises:
        DataError: a part is not FIELD=COLUMN, or the field is not of `fields` or given twice.
    """
    columns: dict[str, Column] = {}
    for part in option.split(","):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column or name not in fields:
            expected = " or ".join(f"{field}=COLUMN" for field in fields)
            message = f"columns {option!r}: expected {expected}"
            raise DataError(message, "COLUMN is a name in the header, or a number from 0")
        if name in columns:
            message = f"columns {option!r}: {name} is given twice"
            raise DataError(message, "give each field once")
        columns[name] = int(column) if column.isdecimal() else column
    return columns


def validate_example(example: Example, expected: Input, name: str) -> Example:
    """Check that an example has the fields of the model's input; parse its entity tags.

    Raises:
        InputError: a pair for a model of single texts or the reverse, or entities that are
            missing, invalid or not expected; the message starts with `name`.
    """
    try:
        return fit_input(example, expected)
    except InputError as error:
        message = f"{name}: {error}"
        raise InputError(message, error.hint) from error


def fit_examples(
    examples: Iterable[Example], expected: Input, noun: str = "input", *, first: int = 0
) -> Iterator[Example]:
    """Check and parse examples as `validate_example`; errors have the noun and the number."""
    for number, example in enumerate(examples, start=first):
        yield validate_example(example, expected, f"{noun} {number}")


def fit_input(example: Example, expected: Input) -> Example:
    """Check and parse an example as `validate_example`, with errors that do not name it."""
    if expected.pair and example.text_pair is None:
        message = "expected a text and a text_pair: this model classifies pairs"
        hint = "in a request, send inputs with text and text_pair; elsewhere separate them by a tab"
        raise InputError(message, hint)
    if not expected.pair and example.text_pair is not None:
        message = "found a text_pair, but this model classifies single texts"
        raise InputError(message, "remove the tab or the text_pair")
    if not expected.marked and example.entities is not None:
        message = "found entities, but this model takes only a text"
        raise InputError(message, "remove the entities")
    if not expected.marked:
        return example
    if example.entities is not None:
        return replace(example, entities=check_spans(example.text, example.entities))
    text, entities = parse_marked_text(example.text)
    return replace(example, text=text, entities=entities)
