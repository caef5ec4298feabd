"""[task] and [data]: what is decided, and where the rows lie."""

from pathlib import Path

from pipework.examples import Column, Columns, Format, Source
from pipework.manifest import Metric, TaskKind
from pipework.settings import Settings


class TaskSettings(Settings):
    """[task]: what is decided, and by which score on dev the best checkpoint is kept.

    `labels` fixes the classes and their order: a list, or a file with a name a line. Without it
    they are the labels of the train file, sorted.
    """

    kind: TaskKind = TaskKind.SINGLE_LABEL
    labels: tuple[str, ...] | Path | None = None
    metric: Metric | None = None


class ColumnSettings(Settings):
    """[data.columns]: where the fields lie, by name or by number from 0."""

    text: Column = "text"
    text_pair: Column | None = None
    label: Column = "label"


class DataSettings(Settings):
    """[data]: the files, relative to `root` (which is relative to the config file)."""

    root: Path | None = None
    train: Path
    dev: Path
    test: Path | None = None
    format: Format | None = None
    header: bool | None = None
    columns: ColumnSettings = ColumnSettings()

    def splits(self) -> dict[str, Source]:
        """Return the data files by split name."""
        files = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: self.source(path) for name, path in files.items() if path is not None}

    def source(self, path: Path) -> Source:
        """Return a file to be read as this section says; a relative path starts at the root."""
        return Source(
            path=(self.root or Path()) / path,
            columns=Columns(**self.columns.model_dump()),
            format=self.format,
            header=self.header,
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the names of the fields an input has."""
        return ("text",) if self.columns.text_pair is None else ("text", "text_pair")
