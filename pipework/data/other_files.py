"""How to read files that are not of the training: with its columns, in the format of the file."""

from collections.abc import Callable
from pathlib import Path

from pipework.data.examples import Source
from pipework.data.readers import SUFFIXES, format_from_suffix
from pipework.data.text_files import file_head, is_utf8
from pipework.run_folder.files import data_suffix
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.run_folder.read_options import Dialect, ReadOptions


def other_source(
    reading: TrainingReadOptions, file: Path, read_head: Callable[[Path], bytes] = file_head
) -> Source:
    """Return how to read a file that is not of the training.

    It has the columns of the training data, and if it has the same suffix, its format. UTF-8 is
    recognised, also if the training data had another encoding.

    Args:
        reading: how the training data was read.
        file: the file.
        read_head: reads the first bytes of the file.

    Raises:
        DataError: the file cannot be read.
    """
    options: ReadOptions = reading
    suffix = "" if file.is_dir() else data_suffix(file)
    if suffix != reading.suffix and (suffix in SUFFIXES or file.is_dir()):
        other = {"format": format_from_suffix(file), "dialect": Dialect()}
        options = options.model_copy(update=other)
    elif reading.dialect.encoding is not None and not file.is_dir() and is_utf8(read_head(file)):
        dialect = reading.dialect.model_copy(update={"encoding": None})
        options = options.model_copy(update={"dialect": dialect})
    return Source(path=file, reading=options)


def unlabelled_source(
    reading: TrainingReadOptions,
    file: Path,
    columns: str | None = None,
    read_head: Callable[[Path], bytes] = file_head,
) -> Source:
    """Return how to read the texts of a file, as `other_source`; labels are ignored.

    `columns` replaces columns of the training data, see `Source.with_columns`.

    Raises:
        DataError: `columns` is invalid, or names a second text for a model of single texts, or the
            file cannot be read.
    """
    source = other_source(reading, file, read_head).unlabelled()
    return source if columns is None else source.with_columns(columns)
