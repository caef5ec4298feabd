"""How the rows of data files are read, in a manifest and before the format is known."""

from enum import StrEnum
from typing import Self

from pipework.record import Record
from pipework.tasks.kinds import DEFAULT_KIND
from pipework.tasks.registry import Kind

Column = str | int
LabelColumn = Column | tuple[Column, ...] | None


class Format(StrEnum):
    """The format of a data file."""

    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"
    FASTTEXT = "fasttext"
    FOLDER = "folder"
    SEMEVAL = "semeval"
    CONLL = "conll"
    TEXT = "text"
    DOCUMENTS = "documents"


class Dialect(Record):
    """How a text file is decoded, and its lines are split; None for the default of the format."""

    delimiter: str | None = None
    quoting: bool | None = None
    encoding: str | None = None


class Reading(Record):
    """How data files are read.

    Attributes:
        text: the column of the texts, by name or by number from 0, as the other columns.
        text_pair: the column of the second texts of pairs.
        label: the column of the labels, or several columns that hold 0 or 1 each.
        format: None: derived from the suffix, see `pipework.data.readers.SUFFIXES`.
        header: whether the first line holds column names; None: true if a column is given by
            name.
        dialect: encoding, delimiter and quoting, if they are not the default.
        skip_unlabelled: whether rows without a label are left out.
        no_label: labels that mean that a row has none.
        vector: names of the positions of a label that is a list of 0 and 1.
        entities: the key of two character spans, [[start, end], [start, end]].
        marked: whether texts mark two entities with <e1>..</e1> and <e2>..</e2>.
        separator: separates the labels in a cell of a multi-label row.
        kind: the kind of task, which determines the type of a label.
    """

    text: Column = "text"
    text_pair: Column | None = None
    label: LabelColumn = "label"
    format: Format | None = None
    header: bool | None = None
    dialect: Dialect = Dialect()
    skip_unlabelled: bool = False
    no_label: tuple[str, ...] = ()
    vector: tuple[str, ...] = ()
    entities: Column | None = None
    marked: bool = False
    separator: str | None = None
    kind: Kind = DEFAULT_KIND

    def named(self) -> Self:
        """Return the columns of texts with the default names instead of numbers."""
        text = "text" if isinstance(self.text, int) else self.text
        pair = "text_pair" if isinstance(self.text_pair, int) else self.text_pair
        return self.model_copy(update={"text": text, "text_pair": pair})


class ReadOptions(Reading):
    """How the data files of a run are read; the columns, the format and the header are known.

    `group` is the column of the groups of rows, if they are needed.
    """

    text: Column
    text_pair: Column | None
    label: LabelColumn
    format: Format
    header: bool
    group: Column | None = None
