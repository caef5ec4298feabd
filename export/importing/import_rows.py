"""The rows of the user that an import is compared on, and their place in the run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipework.data.examples import Example, Source
from pipework.data.kept_rows import CALIBRATION_ROWS, keep_rows, sample_evenly
from pipework.data.readers import column_names
from pipework.errors import ConfigError, DataError
from pipework.export.config import ImportSettings
from pipework.export.importing.source_model import SourceModel
from pipework.run_folder.files import file_digest
from pipework.run_folder.manifest import Part, Split
from pipework.run_folder.read_options import Format, ReadOptions
from pipework.tasks.task import Task
from pipework.train.config.data import ReadingSettings


@dataclass(frozen=True, kw_only=True)
class ImportRows:
    """The rows of the user.

    Attributes:
        pair: whether an input is two texts.
        sources: the files, or parts of them, by split: dev and train; empty without files.
        dev: the rows of dev.
        settings: of the import.
    """

    pair: bool
    sources: dict[str, Source]
    dev: tuple[Example, ...]
    settings: ImportSettings

    @classmethod
    def open(
        cls, files: Sequence[Path], settings: ImportSettings, source: SourceModel
    ) -> "ImportRows":
        """Find the columns of the files, and hold out the rows for the calibration.

        Raises:
            DataError: a file cannot be read.
        """
        known = source.pair if settings.pair is None else settings.pair
        opened = [_source(path, settings.data, source.task, known) for path in files]
        pairs = [file.reading.text_pair is not None for file in opened]
        pair = any(pairs) if known is None else known
        if opened and pairs != [pair] * len(pairs):
            message = f"{opened[0].path}: expected {'two texts' if pair else 'one text'} per row"
            raise ConfigError(message, "set data.columns.text_pair, or pair")
        if not opened:
            return cls(pair=pair, sources={}, dev=(), settings=settings)
        every = tuple(opened[0].rows())
        if not every:
            message = f"{opened[0].path} holds no rows"
            raise DataError(message, "expected rows after the line with the names of the columns")
        sources = {"dev": opened[0]}
        if len(opened) > 1:
            sources["train"] = opened[1]
        elif held_out := min(CALIBRATION_ROWS, len(every) // 4):
            parts = {"dev": Part(rows=held_out), "train": Part(rows=held_out, held_out=True)}
            divided = {name: replace(opened[0], part=part) for name, part in parts.items()}
            if dev := tuple(divided["dev"].rows()):  # equal texts are in the same part
                return cls(pair=pair, sources=divided, dev=dev, settings=settings)
        return cls(pair=pair, sources=sources, dev=every, settings=settings)

    @property
    def labelled(self) -> bool:
        """Whether the rows have labels."""
        return bool(self.sources) and self.sources["dev"].reading.label is not None

    def splits(self, folder: Path) -> dict[str, Split]:
        """Record the files; the run folder keeps the rows of dev, and those for a calibration."""
        return {name: self._split(folder, name, source) for name, source in self.sources.items()}

    def _split(self, folder: Path, name: str, source: Source) -> Split:
        rows = self.dev if name == "dev" else [*source.rows()]
        most = len(rows) if name == "dev" else CALIBRATION_ROWS
        return Split(
            path=str(source.path.absolute()),
            sha256=file_digest(source.path),
            rows=len(rows),
            part=source.part,
            kept=keep_rows(folder, name, sample_evenly(rows, len(rows), most).values()),
        )

    def reading(self, kind: str) -> ReadOptions:
        """Return how the files are read, or the usual names of columns without files."""
        if self.sources:
            return self.sources["dev"].read_options()
        pair = "text_pair" if self.pair else None
        return ReadOptions(
            text="text", text_pair=pair, label=None, format=Format.TSV, header=True, kind=kind
        )


def _source(path: Path, data: ReadingSettings, task: Task, pair: bool | None) -> Source:
    """Return how to read a file: with the configured or the usual columns."""
    columns, source = data.columns, data.source(path, task.kind, labels=task.labels)
    options = source.read_options()
    names = column_names(path, options)
    named = "label" in columns.model_fields_set or "label" in names
    label = columns.label if named or options.format is Format.CONLL else None
    text_pair = columns.text_pair
    if text_pair is None and pair is not False and "text_pair" in names:
        text_pair = "text_pair"
    return source.reread(text_pair=text_pair, label=label)
