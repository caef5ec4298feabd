"""How the files of a bulk job are read: as the training data, if they have its suffix."""

from dataclasses import replace
from pathlib import Path

from pipework.data.examples import Source
from pipework.data.other_files import unlabelled_source
from pipework.data.readers import MAX_FIELD, table_delimiter
from pipework.data.records import LINES, Records
from pipework.data.text_files import HEAD
from pipework.errors import DataError
from pipework.run_folder.files import data_suffix
from pipework.run_folder.manifest import TrainingReadOptions
from pipework.run_folder.read_options import Format
from pipework.serve.bulk.input_files import LINE
from pipework.serve.bulk.stored_files import PARQUET, StoredFile

CUT = (Format.CSV, Format.TSV, Format.JSONL, Format.PARQUET, *LINES)  # read in parts


def file_source(stored: StoredFile, training: TrainingReadOptions, columns: str | None) -> Source:
    """Return how to read a file.

    Args:
        stored: the file.
        training: how the training data was read.
        columns: columns that differ from it, see `Source.with_columns`.

    Raises:
        DataError: `columns` is invalid, or the file cannot be opened.
    """
    source = unlabelled_source(training, Path(stored.name), columns, lambda _: stored.read(0, HEAD))
    suffix = data_suffix(source.path)
    if source.read_options().format is Format.FASTTEXT:
        source = source.reread(text=LINE)
    elif suffix == ".txt" and columns is None and is_text_list(stored, source):
        return source.reread(text=LINE, format=Format.TEXT)
    _check_format(source)
    by_name = suffix in (PARQUET, ".jsonl")
    return replace(source, reading=source.reading.named()) if by_name else source


def _check_format(source: Source) -> None:
    """Check that a file can be cut into parts at the ends of its records."""
    options = source.read_options()
    if options.format not in CUT or not Records(options).can_be_cut():
        message = (
            f"{source.path}: a bulk job reads csv, tsv, jsonl and parquet, in UTF-8 or an encoding "
            "that is not UTF-16 or ISO-2022, and the model was trained on data in another form"
        )
        raise DataError(message, "convert the input, or score it with pipe predict --file")


def is_text_list(stored: StoredFile, source: Source) -> bool:
    """Return whether a .txt file has a text per line, and not the columns of the training data."""
    options = source.read_options()
    if options.format not in CUT:
        return False
    line, _, _ = stored.read(0, MAX_FIELD).partition(b"\n")
    first = line.decode(options.dialect.encoding or "utf-8-sig", "replace").rstrip("\r")
    if not first or table_delimiter(options) in first or options.text_pair is not None:
        return False
    return options.text != first if isinstance(options.text, str) else options.text > 0
