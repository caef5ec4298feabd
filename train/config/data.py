"""Settings of [task] and [data]: the task and the data files."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from pipework.data.examples import Source
from pipework.data.readers import WITHOUT_COLUMNS
from pipework.data.text_files import numbered_lines
from pipework.errors import ConfigError
from pipework.run_folder.manifest import Part
from pipework.run_folder.read_options import Column, Dialect, Format, Reading
from pipework.settings import Positive, Settings
from pipework.tasks.kinds import DEFAULT_KIND, Metric, Words
from pipework.tasks.labels import resolve_label
from pipework.tasks.registry import COMBINED, Kind, task_type
from pipework.tasks.task import Task

UNLABELLED = (Format.TEXT, Format.DOCUMENTS)
NEAR_DUPLICATES = 0.8
CALIBRATION = "calibration"  # the split of the rows for the probabilities
Similarity = Annotated[float, Field(ge=0, le=1)]


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the labels in a file with a name per line. Raises DataError if it is unreadable."""
    return tuple(text.strip() for _, text in numbered_lines(path) if text.strip())


class TaskSettings(Settings):
    """[task]: the kind of task, and the metric on dev that selects the best checkpoint.

    The kind `pretrain` trains an encoder on unlabelled text, see [pretrain].

    `labels` fixes the classes and their order: a list, or a file with a name per line. Without it
    they are the labels of the train file, sorted. A regression has none.

    `positive` is the label whose F1 the metric f1 is, by name or by its number in the order of the
    labels; without it, the second of the two labels.

    `words` is for the kind `tokens`: spans begin and end with such words, and the tokens of a word
    have the tag of its first token. Without it they are the longest words that fit the spans of the
    train file.
    """

    kind: Kind = DEFAULT_KIND
    labels: tuple[str, ...] | Path | None = None
    metric: Metric | None = None
    positive: str | int | None = None
    words: Words | None = None

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        if self.type in COMBINED:
            message = f"no training has the task.kind {self.kind}: pipe combine makes such runs"
            raise ValueError(message)
        if self.labels is not None and self.type.fixed_labels is not None:
            message = f"a task of the kind {self.kind} has no task.labels: remove them"
            raise ValueError(message)
        if isinstance(self.labels, tuple) and any(
            label != label.strip() or not label for label in self.labels
        ):
            message = "expected task.labels without empty labels and spaces around them"
            raise ValueError(message)
        return self

    @property
    def type(self) -> type[Task]:
        """The class of the task."""
        return task_type(self.kind)

    def metric_for(self, labels: tuple[str, ...]) -> Metric:
        """Return the configured or the default metric.

        Raises:
            ConfigError: the metric does not apply to these labels.
        """
        metric = self.metric or self.type.applicable_metrics(labels)[0]
        self.type.check_metric(metric, labels)
        return metric

    def task_for(self, labels: tuple[str, ...]) -> Task:
        """Return the task with these labels.

        Raises:
            ConfigError: the metric or the positive label does not fit them.
        """
        fields: dict[str, Any] = {}
        if self.words is not None and self.type.rows_per_token:
            fields["words"] = self.words
        return self.type(
            labels=labels,
            metric=self.metric_for(labels),
            positive=self.positive_for(labels),
            **fields,
        )

    def positive_for(self, labels: tuple[str, ...]) -> str | None:
        """Return the configured positive label, or None.

        Raises:
            ConfigError: it is not one of two labels.
        """
        if self.positive is None:
            return None
        index = resolve_label(str(self.positive), {name: i for i, name in enumerate(labels)})
        if index is None or Metric.F1 not in self.type.applicable_metrics(labels):
            found = ", ".join(labels[:5]) or "none"
            message = f"expected task.positive to be one of two labels, found {self.positive!r}"
            raise ConfigError(message, f"labels of this {self.kind} task: {found}")
        return labels[index]


class ColumnSettings(Settings):
    """[data.columns]: the columns of the fields, by name or by number from 0.

    `entities` is a key of jsonl with two character spans, [[start, end], [start, end]]. A list of
    columns is the label of a row with 0 or 1 in each.
    """

    text: Column = "text"
    text_pair: Column | None = None
    label: Column | tuple[Column, ...] = "label"
    entities: Column | None = None


class ReadingSettings(Settings):
    """The keys of [data] that say how data files are read."""

    format: Format | None = None
    header: bool | None = None
    delimiter: str | None = None
    quoting: bool | None = None
    encoding: str | None = None
    separator: str | None = None
    skip_unlabelled: bool = False
    no_label: tuple[str, ...] = ()
    marked: bool = False
    columns: ColumnSettings = ColumnSettings()

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        columns, semeval = self.columns, self.format is Format.SEMEVAL
        if self.format in WITHOUT_COLUMNS and columns != ColumnSettings():
            message = f"format {self.format} has no data.columns: remove them"
            raise ValueError(message)
        if (self.marked or semeval) and columns.entities is not None:
            message = "expected one of data.marked and data.columns.entities, found both"
            raise ValueError(message)
        if self.entities and columns.text_pair is not None:
            message = "a pair of texts cannot have entities: remove data.columns.text_pair"
            raise ValueError(message)
        if "" in (self.separator, self.delimiter):
            message = "expected a data.separator and a data.delimiter of at least one character"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _known_dialect(self) -> Self:
        quoting = self.format is not Format.TSV if self.quoting is None else self.quoting
        if quoting and self.delimiter is not None and len(self.delimiter) != 1:
            message = "a data.delimiter of several characters needs data.quoting = false"
            raise ValueError(message)
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError as error:
            message = f"expected the name of an encoding of text, found {self.encoding!r}"
            raise ValueError(message) from error
        return self

    def source(
        self, path: Path, kind: str, part: Part | None = None, labels: tuple[str, ...] = ()
    ) -> Source:
        """Return how to read a file, or a part of it.

        Args:
            path: the file.
            kind: the kind of task.
            part: the part; None for the whole file.
            labels: the names of the positions of labels that are lists of 0 and 1.

        Raises:
            ConfigError: data.separator is set for a task that is not multi-label.
        """
        task = task_type(kind)
        if self.separator is not None and not task.many_labels:
            message = f"data.separator needs a multi_label task, and this task is {kind}"
            raise ConfigError(message, "set task.kind to multi_label, or remove data.separator")
        columns = self.columns.model_dump()
        if not task.predicts:
            columns = {"text": self.columns.text, "label": None}
        reading = Reading(
            **columns,
            format=self.format,
            header=self.header,
            kind=kind,
            dialect=Dialect(delimiter=self.delimiter, quoting=self.quoting, encoding=self.encoding),
            separator=self.separator,
            skip_unlabelled=self.skip_unlabelled or bool(self.no_label),
            no_label=self.no_label,
            vector=labels if task.many_labels else (),
            marked=self.marked,
        )
        return Source(path=path, reading=reading, part=None if part == Part() else part)

    @property
    def entities(self) -> bool:
        """Whether a text has two entities."""
        return self.marked or self.format is Format.SEMEVAL or self.columns.entities is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields of an input."""
        if self.entities:
            return ("text", "entities")
        return ("text",) if self.columns.text_pair is None else ("text", "text_pair")


class SplitSettings(Settings):
    """The keys of [data] that name the files and their parts."""

    root: Path | None = None
    train: Path
    dev: Path | None = None
    dev_rows: Positive | None = None
    dev_seed: Annotated[int, Field(ge=0)] = 0
    test: Path | None = None
    test_rows: Positive | None = None
    calibration: Path | None = None
    calibration_rows: Positive | None = None
    group: Column | None = None
    unlabelled: Path | None = None
    rows: Positive | None = None
    drop_leaked: bool = False
    near_duplicates: Similarity = NEAR_DUPLICATES
    keep_rows: bool = True

    @model_validator(mode="after")
    def _one_dev(self) -> Self:
        if (self.dev is None) == (self.dev_rows is None):
            message = "expected one of data.dev (a file) and data.dev_rows (rows held out of train)"
            raise ValueError(message)
        for name in ("test", CALIBRATION):
            if None not in (getattr(self, name), getattr(self, f"{name}_rows")):
                message = f"expected one of data.{name} (a file) and data.{name}_rows, found both"
                raise ValueError(message)
        if self.group is not None and not self._held_out_rows:
            message = "data.group is for rows held out of train, and no rows are held out"
            raise ValueError(message)
        return self

    @property
    def _held_out_rows(self) -> int:
        return sum(filter(None, (self.dev_rows, self.test_rows, self.calibration_rows)))


class DataSettings(ReadingSettings, SplitSettings):
    """[data]: the data files, relative to `root`, which is relative to the config file.

    train/README.md explains each key. Pretraining reads only texts: a column, or a file of format
    text (a text per line) or documents (a segment per line, a blank line between documents; a
    document is a row).
    """

    def splits(self, kind: str, labels: tuple[str, ...] = ()) -> dict[str, Source]:
        """Return the data files, or parts of them, by split name.

        `labels` are the names of the positions of labels that are lists of 0 and 1.

        Raises:
            ConfigError: data.separator is set for a task that is not multi-label.
        """
        task = task_type(kind)
        stratified = task.fixed_labels is None and not task.many_labels and not task.rows_per_token
        whole, rest = Part(limit=self.rows), self._part(stratified=stratified)
        others, after = dict[str, Source](), 0
        for name in ("dev", "test", CALIBRATION):
            file, rows = getattr(self, name), getattr(self, f"{name}_rows")
            part = whole
            if rows is not None:
                last = after + rows
                part = rest.model_copy(update={"held_out": True, "after": after, "rows": last})
                file, after = self.train, last
            if file is not None:
                others[name] = self.source(self._path(file), kind, part, labels)
        left_out = others if self.drop_leaked else {}
        train = rest.model_copy(update={"without": tuple(left_out)})
        source = self.source(self._path(self.train), kind, train, labels)
        return {"train": replace(source, excluded=tuple(left_out.values())), **others}

    def _part(self, *, stratified: bool) -> Part:
        """Return the part of the train file that is not held out."""
        if not self._held_out_rows:
            return Part(limit=self.rows)
        return Part(
            rows=self._held_out_rows,
            seed=self.dev_seed,
            stratified=stratified and self.group is None,
            group=self.group,
            limit=self.rows,
        )

    def unlabelled_source(self) -> Source | None:
        """Return the texts that are labelled by a teacher, or None."""
        if self.unlabelled is None:
            return None
        part = Part(limit=self.rows)
        return self.source(self._path(self.unlabelled), DEFAULT_KIND, part).unlabelled()

    def _path(self, file: Path) -> Path:
        return (self.root or Path()) / file
