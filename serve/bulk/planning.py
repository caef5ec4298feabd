"""The plan of a bulk job: its files, their work items, and the columns that are copied."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

from pipework.errors import ConfigError, DataError
from pipework.run_folder.manifest import Data, TrainingReadOptions
from pipework.serve.bulk.file_sources import file_source
from pipework.serve.bulk.input_files import InputFile, PlannedFile, plan_file
from pipework.serve.bulk.part_tables import FILE, ROW, output_types
from pipework.serve.bulk.records import RowReader
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.bulk.stored_files import StoredFile

PLANNERS = 16  # files that are planned at a time, most of which wait for their footers


def plan_files(
    stored: Sequence[StoredFile], training: Data, columns: str | None
) -> list[PlannedFile]:
    """Cut the files into numbered work items; a file that cannot be read has a problem instead."""
    reading = TrainingReadOptions.of(training)

    def plan(index: int) -> PlannedFile:
        file = stored[index]
        source = file_source(file, reading, columns)
        try:
            return plan_file(file, source, index)
        except DataError as error:
            record = InputFile(name=file.name, size=file.size, columns=(), problem=str(error))
            return PlannedFile(file=record, items=[])

    with ThreadPoolExecutor(PLANNERS) as threads:
        planned = list(threads.map(plan, range(len(stored))))
    numbers = count()
    return [
        replace(
            one, items=[item.model_copy(update={"number": next(numbers)}) for item in one.items]
        )
        for one in planned
    ]


def row_readers(
    planned: Sequence[PlannedFile], keep: Sequence[str] | None, scorer: Scorer
) -> dict[int, RowReader]:
    """Return the readers of the files that have columns, by the index of the file.

    Args:
        planned: the files.
        keep: the columns to copy; None for all.
        scorer: the scorer, whose columns are added.

    Raises:
        ConfigError: a column is missing, has the name of a column of the output, or has types that
            cannot be combined.
        DataError: no file has rows.
    """
    filled = {index: one for index, one in enumerate(planned) if one.source is not None}
    if not filled:
        message = "--in: no file can be scored"
        raise DataError(message, f"the first: {planned[0].file.problem}")
    schemas = {one.file.name: one.arrow_schema() for one in filled.values()}
    default = next(iter(schemas.values())).names
    copied = tuple(dict.fromkeys(default if keep is None else keep))
    added = (FILE, ROW, *scorer.columns([]))
    if clash := [name for name in copied if name in added]:
        message = f"column {clash[0]!r} has the name of a column of the output"
        raise ConfigError(message, "choose the columns to copy: --keep NAME,NAME")
    expected = scorer.manifest.input
    readers = {
        index: RowReader(
            source=one.source,
            columns=one.file.columns,
            keep=copied,
            expected=expected,
            keys=one.file.keys,
        )
        for index, one in filled.items()
        if one.source is not None
    }
    for reader in readers.values():
        reader.check()
    types = output_types(schemas, copied)
    return {index: replace(reader, types=types) for index, reader in readers.items()}
