"""How the files of a bulk job are read: as the training data, but for their format."""

from dataclasses import replace
from pathlib import Path

from pipework.data.examples import Source
from pipework.data.other_files import unlabelled_source
from pipework.data.readers import MAX_FIELD, Columns, Format
from pipework.errors import DataError
from pipework.run_folder.manifest import Dialect, ReadOptions, TrainingReadOptions
from pipework.serve.bulk.input_files import LINE
from pipework.serve.bulk.stored_files import PARQUET, StoredFile

WHOLE = (Format.JSON, Format.ARROW, Format.FASTTEXT, Format.FOLDER)  # read by one process


def file_source(stored: StoredFile, training: ReadOptions, columns: str | None) -> Source:
    """Return how to read a file.

    Args:
        stored: the file.
        training: how the training data was read.
        columns: columns that differ from it, see `Source.with_columns`.

    Raises:
        DataError: `columns` is invalid, or the file cannot be opened.
    """
    # Without the suffix of the training data, the suffix of the file determines the format.
    reading = TrainingReadOptions.model_validate(training.model_dump())
    source = unlabelled_source(reading, Path(stored.name), columns)
    suffix = source.path.suffix
    if suffix == ".txt" and columns is None and is_text_list(stored, source.columns):
        listed = replace(source.columns, text=LINE)
        return replace(source, columns=listed, format=Format.TEXT)
    _check_format(source)
    named = replace(source, columns=source.columns.named())
    return named if suffix in (PARQUET, ".jsonl") else source


def _check_format(source: Source) -> None:
    """Check that a file can be cut into parts at the ends of its records."""
    if source.format in WHOLE or source.dialect != Dialect():
        message = (
            f"{source.path}: a bulk job reads csv with commas, tsv, jsonl and parquet in UTF-8, and"
            " the model was trained on data with another format, delimiter, quoting or encoding"
        )
        raise DataError(message, "convert the input, or score it with pipe predict --file")


def is_text_list(stored: StoredFile, columns: Columns) -> bool:
    """Return whether a .txt file has a text per line, and not the columns of the training data."""
    line, _, _ = stored.read(0, MAX_FIELD).partition(b"\n")
    first = line.decode("utf-8-sig", "replace").rstrip("\r")
    if not first or "\t" in first or columns.text_pair is not None:
        return False
    return columns.text != first if isinstance(columns.text, str) else columns.text > 0
