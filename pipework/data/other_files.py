"""How to read files that are not of the training: with its columns, in the format of the file."""

from pathlib import Path

from pipework.data.examples import Source
from pipework.data.readers import SUFFIXES, format_from_suffix
from pipework.run_folder.files import data_suffix
from pipework.run_folder.manifest import Dialect, ReadOptions, TrainingReadOptions


def other_source(reading: TrainingReadOptions, file: Path) -> Source:
    """Return how to read a file that is not of the training.

    It has the columns of the training data, and its format if it has the same suffix.
    """
    options: ReadOptions = reading
    suffix = "" if file.is_dir() else data_suffix(file)
    if suffix != reading.suffix and (suffix in SUFFIXES or file.is_dir()):
        other = {"format": format_from_suffix(file).value, "dialect": Dialect()}
        options = options.model_copy(update=other)
    return Source.of(options, file)


def unlabelled_source(
    reading: TrainingReadOptions, file: Path, columns: str | None = None
) -> Source:
    """Return how to read the texts of a file; labels are ignored.

    `columns` replaces columns of the training data, see `Source.with_columns`.

    Raises:
        DataError: `columns` is invalid, or names a second text for a model of single texts.
    """
    source = other_source(reading, file).unlabelled()
    return source if columns is None else source.with_columns(columns)
