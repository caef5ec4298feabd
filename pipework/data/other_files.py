"""How to read files that are not of the training: with its columns, in the format of the file."""

from pathlib import Path

from pipework.data.examples import Source
from pipework.data.readers import SUFFIXES
from pipework.run_folder.manifest import ReadOptions, TrainingReadOptions


def other_source(reading: TrainingReadOptions, file: Path) -> Source:
    """Return how to read a file that is not of the training.

    It has the columns of the training data, and its format if it has the same suffix.
    """
    options: ReadOptions = reading
    if file.suffix in SUFFIXES and file.suffix != reading.suffix:
        options = options.model_copy(update={"format": SUFFIXES[file.suffix].value})
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
