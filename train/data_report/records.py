"""The data report: statistics of each file, and findings."""

from pydantic import Field

from pipework.record import Record


class ValueStats(Record):
    """Statistics of the targets of a regression."""

    smallest: float
    median: float
    largest: float
    mean: float


class SplitReport(Record):
    """Statistics of a file: rows by label, lengths, duplicates.

    `values` replaces `labels` for a regression. `characters` and, with a tokenizer, `tokens` are
    the 50th, 95th and 100th percentiles of the lengths. In a large file only `tokenized` rows,
    evenly spaced, are tokenized: `tokens` (before truncation), `truncated` and `unknown_rate` cover
    only these. `truncated` rows are longer than the maximum length; at most 1 % are longer than
    `enough_tokens`, which costs `enough_cost` times the tokens of the maximum length; `windows` of
    this length read the whole of single texts. `header` is
    the label of the first row, if it looks like a header; `headers` rows repeat the names of the
    columns. `dropped` rows are left out by data.drop_leaked, `skipped` rows of the file have no
    label, `disputed` rows have different labels of annotators. `defects` are the rows with each
    kind of damaged text. `same_tokens` texts have the tokens of another text. `without_labels` rows
    have none of several labels. `overlapping` spans overlap an earlier one, and `inside_words` of
    them begin or end inside of a word.
    """

    rows: int
    labels: dict[str, int]
    values: ValueStats | None
    characters: tuple[int, int, int]
    tokenized: int
    tokens: tuple[int, int, int] | None
    truncated: int | None
    enough_tokens: int | None
    enough_cost: float | None
    windows: int | None = None
    unknown_rate: float | None
    empty: int
    duplicates: int
    conflicting: int
    header: str | None = None
    headers: int = 0
    dropped: int = 0
    skipped: int = 0
    disputed: int = 0
    defects: dict[str, int] = Field(default_factory=dict)
    same_tokens: int = 0
    without_labels: int = 0
    overlapping: int = 0
    inside_words: int = 0

    @property
    def truncated_rate(self) -> float | None:
        """The share of the tokenized rows that are truncated."""
        return None if self.truncated is None else self.truncated / max(self.tokenized, 1)


class SharedRows(Record):
    """The number of rows of a later file whose text is also in an earlier file.

    `templates` are rows with another text, which is the same with types in place of spans.
    """

    earlier: str
    later: str
    rows: int
    templates: int = 0


class DataReport(Record):
    """Statistics of all files, rows shared between files, and findings as sentences."""

    splits: dict[str, SplitReport]
    shared: tuple[SharedRows, ...]
    findings: tuple[str, ...]
