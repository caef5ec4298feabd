"""A bulk job: scores the work items of a shard, and skips those that are finished."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pipework.data.examples import Source
from pipework.data.other_files import unlabelled_source
from pipework.data.readers import MAX_FIELD, Columns, Format
from pipework.errors import ConfigError, DataError, without_password
from pipework.progress import Progress
from pipework.run_folder.manifest import TrainingReadOptions, read_classifier
from pipework.serve.bulk.executors import Executor, executor, parse_shard
from pipework.serve.bulk.input_files import (
    LINE,
    PARQUET,
    InputFile,
    RangeInMemory,
    StoredFile,
    WorkItem,
    find_files,
    plan_file,
    unreadable,
)
from pipework.serve.bulk.job_folder import JobFolder, job_folder
from pipework.serve.bulk.ledger import (
    PARTS,
    BulkPlan,
    EngineIdentity,
    FinishedItem,
    Ledger,
    RowCounts,
    digest,
    part_name,
)
from pipework.serve.bulk.records import Reject, RowReader, RowWindow
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.engines import computes_on_gpu
from pipework.tasks.predictions import (
    LABEL,
    TRUNCATED,
    ColumnType,
    PredictedColumn,
    PredictedColumns,
)

ROW = "source_row"


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkOptions:
    """Options of a job.

    Attributes:
        pattern: a path, folder, glob pattern or URL of the input.
        out: the job folder: a path, or a URL of an object store.
        engine: name of an engine; None for the default.
        columns: columns that differ from those of the training data, see `Source.with_columns`.
        keep: the columns that are copied to the output; None for all.
        shard: "I/N" for the I-th of N shards, from 1; None for that of the environment.
        on: the Ray cluster, see `executor`; None for this process.
    """

    pattern: str
    out: str | Path
    engine: str | None = None
    columns: str | None = None
    keep: Sequence[str] | None = None
    shard: str | None = None
    on: str | None = None


@dataclass(kw_only=True, slots=True)
class BulkSummary:
    """The result of a shard.

    Attributes:
        items, skipped: work items of the shard, and those that were already finished.
        planned, finished: work items of the job, and those that all processes have finished.
        counts: numbers of rows.
    """

    items: int
    skipped: int = 0
    planned: int
    finished: int
    counts: RowCounts = field(default_factory=RowCounts)


def score_files(run: Path, options: BulkOptions, progress: Progress) -> BulkSummary:
    """Score the files of a job, or one shard of them.

    Raises:
        ConfigError: an option is invalid, or the job folder cannot be used, for example because
            it belongs to another job.
        DataError: some items could not be read; all others are finished.
        ChangedFileError: the input of a finished item, or a file of the engine, has changed.
    """
    index, shards = parse_shard(options.shard, os.environ)
    folder = job_folder(str(options.out))
    stored = find_files(options.pattern, folder)
    gpu = computes_on_gpu(read_classifier(run), options.engine)
    with (
        executor(options.on, gpu=gpu) as place,
        Scorer(run.absolute(), options.engine, threads=place.threads) as scorer,
    ):
        job = BulkJob(scorer, stored, folder, options)
        mine = [item for item in job.ledger.plan.items if item.number % shards == index]
        part = f", shard {index + 1} of {shards}" if shards > 1 else ""
        title = f"score with {scorer.record.name}{place.title}{part}"
        with progress.stage(title, sum(item.rows for item in mine), "rows"):
            return job.run(mine, place, progress)


class BulkJob:
    """The work items of a job, with the scorer and the ledger.

    Attributes:
        ledger: the ledger; its plan has the work items.
    """

    def __init__(
        self, scorer: Scorer, stored: Sequence[StoredFile], folder: JobFolder, options: BulkOptions
    ) -> None:
        """Plan a job, and open its ledger.

        Raises:
            ConfigError: a column is missing, or the folder belongs to another job.
            DataError: a file is damaged, or all are empty.
        """
        self._scorer = scorer
        self._stored = stored
        sources = [self._source(file, options.columns) for file in stored]
        files = list[InputFile]()
        items = list[WorkItem]()
        for index, (file, source) in enumerate(zip(stored, sources, strict=True)):
            planned, parts = plan_file(file, source, index, len(items))
            files.append(planned)
            items += parts
        filled = [file for file in files if file.columns]
        if not filled:
            message = f"--in {without_password(options.pattern)}: all files are empty"
            raise DataError(message, "expected rows in at least one file")
        keep = tuple(dict.fromkeys(filled[0].columns if options.keep is None else options.keep))
        added = (ROW, *scorer.model.columns([]))
        if clash := [name for name in keep if name in added]:
            message = f"column {clash[0]!r} has the name of a column of the output"
            raise ConfigError(message, "choose the columns to copy: --keep NAME,NAME")
        expected = scorer.manifest.input
        self._readers = [
            RowReader(source=source, columns=file.columns, keep=keep, expected=expected)
            for file, source in zip(files, sources, strict=True)
        ]
        readers = [reader for reader in self._readers if reader.columns]
        for reader in readers:
            reader.check()
        check_types({file.name: file.by_column for file in filled}, keep)
        self._first = readers[0]
        self.ledger = Ledger(folder, self._plan(keep, files, items))

    def _source(self, stored: StoredFile, columns: str | None) -> Source:
        """Return how to read a file: as the training data, but for its format."""
        training = self._scorer.manifest.data.reading.model_dump()
        reading = TrainingReadOptions.model_validate(training)
        source = unlabelled_source(reading, Path(stored.name), columns)
        suffix = source.path.suffix
        if suffix == ".txt" and columns is None and is_text_list(stored, source.columns):
            listed = replace(source.columns, text=LINE)
            return replace(source, columns=listed, format=Format.TEXT)
        named = replace(source, columns=source.columns.named())
        return named if suffix in (PARQUET, ".jsonl") else source

    @property
    def plan_sha256(self) -> str:
        """Digest of the plan of the job."""
        return self.ledger.plan_sha256

    def check(self) -> None:
        """Check, in another process, that it has the model and the job folder of the job.

        Raises:
            ConfigError: it has not.
        """
        plan = self.ledger.plan
        self.ledger.check(self._plan(plan.keep, plan.files, plan.items))

    def _plan(
        self, keep: tuple[str, ...], files: Sequence[InputFile], items: Sequence[WorkItem]
    ) -> BulkPlan:
        manifest = self._scorer.manifest
        return BulkPlan(
            model=manifest.identity.name,
            task=manifest.task,
            tokenizer=manifest.input.tokenizer.sha256,
            engine=EngineIdentity.of(self._scorer.record),
            columns=tuple(self._first.names.values()),
            keep=keep,
            files=tuple(files),
            items=tuple(items),
        )

    def run(self, items: Sequence[WorkItem], place: Executor, progress: Progress) -> BulkSummary:
        """Score items, and skip finished ones.

        Raises:
            DataError: some items could not be read; all others are finished.
        """
        planned = len(self.ledger.plan.items)
        damaged = list[DataError]()
        summary = BulkSummary(items=len(items), planned=planned, finished=planned)
        missing = self._missing(items, summary, progress)
        for outcome in place.score(self, missing, progress):
            if isinstance(outcome, DataError):
                progress.note(str(outcome))
                damaged.append(outcome)
            else:
                summary.counts += outcome.counts
        if damaged:
            failed = f"{len(damaged)} of {len(items)} work items cannot be read"
            message = f"{failed}; first: {damaged[0]}"
            raise DataError(message, "restore the files and run the command again")
        if summary.items < planned:  # else all are finished: no need to list the folder
            summary.finished = self.ledger.finished()
        return summary

    def _missing(
        self, items: Sequence[WorkItem], summary: BulkSummary, progress: Progress
    ) -> Iterator[WorkItem]:
        """Yield the items that are not finished, and count the others."""
        for item in items:
            entry = self.ledger.find(item, self._stored[item.file])
            if entry is None:
                yield item
            else:
                summary.skipped += 1
                summary.counts += entry.counts
                progress.advance(item.rows)

    def score(self, item: WorkItem, progress: Progress) -> FinishedItem:
        """Score an item and record it; its bytes are read once.

        Raises:
            DataError: its bytes cannot be read, or have changed.
        """
        import pyarrow.parquet as pq  # noqa: PLC0415  (optional)

        stored = self._stored[item.file]
        data = stored.read(item.start, item.end)
        sha256 = hashlib.sha256(data).hexdigest()
        if item.sha256 not in (None, sha256):
            raise _changed(stored)
        rejects = list[Reject]()
        counts = RowCounts()
        path = f"{PARTS}/{part_name(item)}.parquet"
        with self.ledger.folder.new_file(path) as part, ExitStack() as stack:
            writer = None
            for window in self._windows(item, stored, data):
                predicted = self._scorer.model.columns(window.examples)
                table = self._table(window, predicted)
                counts += _counts(window, predicted)
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(part.stream, table.schema))
                writer.write_table(table)
                rejects += window.rejects
                progress.advance(len(window.rows) + len(window.rejects))
            rows = counts.rows + counts.rejected
            if writer is None or (item.row_group is not None and rows != item.rows):
                raise _changed(stored)
            # The plan has no digest of the bytes of parquet. A change that is found here and not by
            # the next command spares scoring the rest of the file in vain.
            if item.sha256 is None and not stored.unchanged() and digest(stored, item) != sha256:
                raise _changed(stored)
            writer.close()
            record = part.finish()
        read = item.model_copy(update={"sha256": sha256})
        return self.ledger.finish(read, stored, record, rejects, counts)

    def _windows(self, item: WorkItem, stored: StoredFile, data: bytes) -> Iterator[RowWindow]:
        import pyarrow as pa  # noqa: PLC0415  (optional)

        reader = self._readers[item.file]
        if item.row_group is None:
            yield from reader.text_rows(data, item.row)
            return
        with stored.open() as stream:
            try:
                file = RangeInMemory(stream, item.start, data)
                yield from reader.table_rows(file, item.row_group, item.row)
            except (pa.ArrowException, OSError) as error:
                name = f"{stored.name}, row group {item.row_group}"
                raise unreadable(name, error) from error

    def _table(self, window: RowWindow, predicted: PredictedColumns) -> Any:  # noqa: ANN401
        """Return the rows of a window as an arrow table."""
        import pyarrow as pa  # noqa: PLC0415  (optional)

        types = {
            ColumnType.TEXT: pa.string(),
            ColumnType.NUMBER: pa.float32(),
            ColumnType.FLAG: pa.bool_(),
        }
        columns = dict(zip(window.kept.schema.names, window.kept.columns, strict=True))
        columns[ROW] = pa.array(window.rows, pa.int64())
        for name, column in predicted.items():
            item = types[column.type]
            columns[name] = pa.array(column.values, pa.list_(item) if column.many else item)
        return pa.table(columns, metadata=self._metadata())

    def _metadata(self) -> dict[str, str]:
        """Return the metadata of a part: model, engine and proof."""
        plan = self.ledger.plan
        parity = self._scorer.record.parity
        proof = None if parity is None else parity.model_dump(mode="json")
        return {
            "pipework.model": plan.model,
            "pipework.engine": plan.engine.model_dump_json(),
            "pipework.proof": json.dumps(proof),
        }


def is_text_list(stored: StoredFile, columns: Columns) -> bool:
    """Return whether a .txt file has a text per line, and not the columns of the training data."""
    line, _, _ = stored.read(0, MAX_FIELD).partition(b"\n")
    first = line.decode("utf-8-sig", "replace").rstrip("\r")
    if not first or "\t" in first or columns.text_pair is not None:
        return False
    return columns.text != first if isinstance(columns.text, str) else columns.text > 0


def check_types(files: Mapping[str, Mapping[str, str]], keep: Sequence[str]) -> None:
    """Check that a copied column has the same type in all files: parts are read as one table.

    Args:
        files: the type of each column, by file.
        keep: the columns that are copied.

    Raises:
        ConfigError: it has not.
    """
    for name in keep:
        types = {columns[name]: file for file, columns in reversed([*files.items()])}
        if len(types) > 1:
            found = ", ".join(f"{kind} in {file}" for kind, file in sorted(types.items()))
            message = f"column {name!r} has several types: {found}"
            raise ConfigError(message, "choose the columns to copy: --keep NAME,NAME")


def _changed(stored: StoredFile) -> DataError:
    message = f"{stored.name} has changed since the job was planned"
    return DataError(message, "restore the file, or use another --out folder")


def _counts(window: RowWindow, predicted: PredictedColumns) -> RowCounts:
    """Return the numbers of rows; a regression has no labels."""
    labels = predicted.get(LABEL, PredictedColumn(type=ColumnType.TEXT, values=()))
    return RowCounts(
        rows=len(window.rows),
        rejected=len(window.rejects),
        truncated=sum(predicted[TRUNCATED].values),
        labels=Counter(chain.from_iterable(labels.values) if labels.many else labels.values),
    )
