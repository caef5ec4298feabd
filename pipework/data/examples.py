"""Rows of a data file become examples. An error names the file and the line."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import islice
from pathlib import Path

from pipework.data.entities import Spans, check_spans, read_marks
from pipework.data.readers import Column, Columns, Format, Record, format_of, records
from pipework.errors import DataError, InputError
from pipework.run_folder.manifest import Input, Part, Reading
from pipework.run_folder.task import TaskKind

Label = str | tuple[str, ...]
WHOLE = re.compile(r"[0-9]{1,9}")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LARGEST = 1e30  # of a number to learn: its square must not leave float32 for float64
SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One text, a pair, or a text with two entities, with its label where it has one.

    Attributes:
        text: without the marks of its entities.
        text_pair: the second text of a pair.
        entities: the characters [start, end) of two entities in `text`, in the order of their
            roles, e1 and e2.
        label: one label, the labels of a multi-label task (none of them is an empty tuple), or a
            number as it is written.
        line: where it begins in its file, from 1; None if it is of no file.
    """

    text: str
    text_pair: str | None = None
    entities: Spans | None = None
    label: Label | None = None
    line: int | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A data file and how to read it.

    Attributes:
        path: the file.
        columns: where the fields lie.
        format: None means by the file's suffix (.csv, .tsv, .txt as tsv, .jsonl).
        header: whether the first line holds names; None means that it does when a column is
            given by name.
        kind: what a label is: one, several, or a number.
        separator: what stands between several labels in a cell.
        marked: whether texts mark two entities with <e1>..</e1> and <e2>..</e2>.
        part: which rows of the file; None for all.
    """

    path: Path
    columns: Columns
    format: Format | None = None
    header: bool | None = None
    kind: TaskKind = TaskKind.SINGLE_LABEL
    separator: str | None = None
    marked: bool = False
    part: Part | None = None

    @classmethod
    def of(cls, reading: Reading, path: Path, part: Part | None = None) -> "Source":
        """Return a file, or a part of it, that is to be read as a manifest says."""
        return cls(
            path=path,
            columns=Columns(
                text=reading.text,
                text_pair=reading.text_pair,
                label=reading.label,
                entities=reading.entities,
            ),
            format=Format(reading.format),
            header=reading.header,
            kind=reading.kind,
            separator=reading.separator,
            marked=reading.marked,
            part=part,
        )

    def reading(self) -> Reading:
        """Return how the file is read, with nothing left to be guessed.

        Raises:
            DataError: the format cannot be told from the suffix.
        """
        columns = self.columns
        named = any(
            isinstance(one, str) for one in (columns.text, columns.text_pair, columns.label)
        )
        how = Format(self.format or format_of(self.path))
        return Reading(
            text=columns.text,
            text_pair=columns.text_pair,
            label=columns.label,
            entities=columns.entities,
            format=how.value,
            header=named if self.header is None else self.header,
            kind=self.kind,
            separator=self.separator,
            marked=self.marked or how is Format.SEMEVAL,
        )

    def unlabelled(self) -> "Source":
        """Return the same rows, read without labels, whether or not there are any."""
        reading = self.reading().model_copy(update={"label": None})
        return Source.of(reading, self.path, self.part)

    def whole(self) -> "Source":
        """Return the whole file of which this is a part."""
        return replace(self, part=None)

    def rows(self) -> Iterator[Example]:
        """Read the rows in order; blank lines are no rows.

        Raises:
            DataError: for a file that is missing or not UTF-8, a row with too few or too many
                fields, a text that is not Unicode or lacks the marks of its entities, or a label
                that is empty or no number where one is expected; the message starts with
                file:line. Also for a part that leaves nothing of the file.
        """
        if self.part is None:
            return self._all()
        return self._part(self.part)

    def _all(self) -> Iterator[Example]:
        reading = self.reading()
        found = records(self.path, Format(reading.format), self.columns, header=reading.header)
        return (self._example(record, marked=reading.marked) for record in found)

    def _part(self, part: Part) -> Iterator[Example]:
        """Hold out the rows whose digests are the smallest, and copies of the last of them.

        Copies of a text have the same digest, so they stay together.
        """
        lowest = nsmallest(part.rows + 1, (_digest(row, part.seed) for row in self._all()))
        if len(lowest) <= part.rows:
            message = f"{self.path} holds {len(lowest)} rows: cannot hold out {part.rows} of them"
            raise DataError(message, "lower data.dev_rows")
        bound = lowest[part.rows - 1]
        for row in self._all():
            if (_digest(row, part.seed) <= bound) == part.held_out:
                yield row

    def _example(self, record: Record, *, marked: bool) -> Example:
        try:
            text, text_pair = _text(record.text, self.columns.text), None
            if self.columns.text_pair is not None:
                text_pair = _text(record.text_pair, self.columns.text_pair)
            label = None if self.columns.label is None else self._label(record.label)
            entities = None
            if marked:
                text, entities = read_marks(text)
            elif self.columns.entities is not None:
                entities = check_spans(text, _spans(record.entities, self.columns.entities))
        except InputError as error:
            message = f"{self.path}:{record.line}: {error}"
            raise DataError(message, error.hint) from error
        return Example(
            text=text, text_pair=text_pair, entities=entities, label=label, line=record.line
        )

    def _label(self, value: object) -> Label:
        match self.kind:
            case TaskKind.SINGLE_LABEL:
                return _one_label(value)
            case TaskKind.MULTI_LABEL:
                return self._several_labels(value)
            case TaskKind.REGRESSION:
                return _number(value)
            case TaskKind.PRETRAIN:
                return ()

    def _several_labels(self, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            if self.separator is None:
                message = "expected a list of labels, found a string"
                raise InputError(message, "set data.separator to what stands between labels")
            value = value.split(self.separator) if value.strip() else []
        if not isinstance(value, list):
            message = f"expected a list of labels, found {type(value).__name__}"
            raise InputError(message, "a row without labels has the empty list, []")
        return tuple(dict.fromkeys(_one_label(one) for one in value))


def _text(value: object, column: Column) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        message = f"expected a string at {column!r}, found {type(value).__name__}"
        raise InputError(message)
    if SURROGATE.search(text := str(value)):
        message = "a text is not Unicode: it holds half of a pair (\\uD800)"
        raise InputError(message, "write the character itself, or both halves")
    return text


def _one_label(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        message = f"expected a label, found {type(value).__name__}"
        raise InputError(message, "a label is a string or a whole number")
    if not (label := str(value).strip()):
        message = "the label is empty"
        raise InputError(message, "every row of this file needs a label")
    return label


def _number(value: object) -> str:
    written = "" if isinstance(value, bool) else str(value).strip()
    if not DECIMAL.fullmatch(written) or abs(float(written)) > LARGEST:
        message = f"expected a number to learn, found {value!r}"
        raise InputError(message, "a regression learns finite numbers, as 3 or 4.25")
    return written


def _spans(value: object, column: Column) -> list[list[int]]:
    pairs = value if isinstance(value, list) else []
    whole = [
        [place for place in pair if type(place) is int] if isinstance(pair, list) else []
        for pair in pairs
    ]
    if whole != pairs or [len(pair) for pair in whole] != [2, 2]:
        message = f"expected [[start, end], [start, end]] at {column!r}, found {value!r}"
        raise InputError(message, "the characters of e1 and of e2, in jsonl")
    return whole


def _digest(row: Example, seed: int) -> bytes:
    fields = repr((seed, row.text, row.text_pair, row.entities))
    return hashlib.blake2b(fields.encode(), digest_size=16).digest()


def resolve_label(found: str, labels: Mapping[str, int]) -> int | None:
    """Return a label's place among `labels`: by name, or by number where it is no name.

    Files often hold numbers, with the names beside them in a list. Where a name is a number
    itself, a number is only ever a name. None where it is neither.
    """
    if found in labels:
        return labels[found]
    if not WHOLE.fullmatch(found) or any(WHOLE.fullmatch(label) for label in labels):
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


def fitting(example: Example, given: Input, name: str) -> Example:
    """Return an input as the model takes it: for one with entities, the marks taken out.

    Raises:
        InputError: a pair for a model of single texts or the reverse, entities that are missing,
            wrong, or that the model has no use for; the message starts with `name`.
    """
    try:
        return _fitted(example, given)
    except InputError as error:
        message = f"{name}: {error}"
        raise InputError(message, error.hint) from error


def _fitted(example: Example, given: Input) -> Example:
    if given.pair and example.text_pair is None:
        message = "expected a text and a text_pair: this model compares two"
        raise InputError(message, "separate the two by a tab, or send text and text_pair")
    if not given.pair and example.text_pair is not None:
        message = "found a text_pair, but this model takes one text at a time"
        raise InputError(message, "leave out the tab, or the text_pair")
    if not given.marked and example.entities is not None:
        message = "found entities, but this model takes a text alone"
        raise InputError(message, "leave them out")
    if not given.marked:
        return example
    if example.entities is not None:
        return replace(example, entities=check_spans(example.text, example.entities))
    text, entities = read_marks(example.text)
    return replace(example, text=text, entities=entities)
