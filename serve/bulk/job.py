"""A bulk job: scores the work items of a shard, and skips those that are finished."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipework.data.examples import Source
from pipework.data.readers import SUFFIXES, Format
from pipework.errors import ConfigError, DataError, without_password
from pipework.progress import Progress
from pipework.run_folder.manifest import read_classifier
from pipework.run_folder.task import TaskKind
from pipework.serve.bulk.executors import Executor, executor, parse_shard
from pipework.serve.bulk.input_files import (
    PARQUET,
    InputFile,
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
from pipework.serve.bulk.records import Reject, RowReader, RowWindow, check_types, is_text_list
from pipework.serve.bulk.scorer import LABEL, SCORE, TRUNCATED, ScoredBatch, Scorer, column_name
from pipework.serve.engines import computes_on_gpu

ROW, TEXT = "source_row", "text"
ADDED = (ROW, LABEL, SCORE, TRUNCATED)


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
        rejected: rows that could not be read.
        counts: the scored rows.
    """

    items: int
    skipped: int = 0
    planned: int
    finished: int
    rejected: int = 0
    counts: RowCounts

    def add(self, entry: FinishedItem) -> None:
        """Add the numbers of a finished item."""
        self.rejected += entry.rejected
        self.counts.add(entry.rows, entry.truncated, entry.labels)


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
        self._scorer, self._stored, self._options = scorer, stored, options
        files, items = list[InputFile](), list[WorkItem]()
        for index, file in enumerate(stored):
            source = None if file.name.endswith(PARQUET) else self._source(file)
            planned, parts = plan_file(file, source, index, len(items))
            files.append(planned)
            items += parts
        filled = [file for file in files if file.columns]
        if not filled:
            message = f"--in {without_password(options.pattern)}: all files are empty"
            raise DataError(message, "expected rows in at least one file")
        keep = tuple(dict.fromkeys(filled[0].columns if options.keep is None else options.keep))
        if clash := [name for name in keep if name in ADDED]:
            message = f"column {clash[0]!r} has the name of a column of the output"
            raise ConfigError(message, "choose the columns to copy: --keep NAME,NAME")
        self._readers = [
            RowReader(
                source=self._source(stored[index]),
                columns=file.columns,
                keep=keep,
                expected=scorer.manifest.input,
            )
            for index, file in enumerate(files)
        ]
        readers = [reader for reader in self._readers if reader.columns]
        for reader in readers:
            reader.check()
        check_types({file.name: file.by_column for file in filled}, keep)
        self._first = readers[0]
        self.ledger = Ledger(folder, self._plan(keep, files, items))

    def run(self, items: Sequence[WorkItem], place: Executor, progress: Progress) -> BulkSummary:
        """Score items, and skip finished ones."""
        planned, damaged = len(self.ledger.plan.items), list[DataError]()
        summary = BulkSummary(
            items=len(items), planned=planned, finished=planned, counts=RowCounts()
        )
        missing = self._missing(items, summary, progress)
        for outcome in place.score(self, missing, progress):
            if isinstance(outcome, DataError):
                progress.note(str(outcome))
                damaged.append(outcome)
            else:
                summary.add(outcome)
        if damaged:
            message = (
                f"{len(damaged)} of {len(items)} work items cannot be read; first: {damaged[0]}"
            )
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
                summary.add(entry)
                progress.advance(item.rows)

    def check(self) -> None:
        """Check, in another process, that it has the model and the job folder of the job.

        Raises:
            ConfigError: it has not.
        """
        plan = self.ledger.plan
        self.ledger.check(self._plan(plan.keep, plan.files, plan.items))

    def score(self, item: WorkItem, progress: Progress) -> FinishedItem:
        """Score an item and record it.

        Raises:
            DataError: its bytes cannot be read, or have changed.
        """
        import pyarrow.parquet as pq  # noqa: PLC0415  (optional)

        stored = self._stored[item.file]
        sha256, rejects, counts = digest(stored, item), list[Reject](), RowCounts()
        if item.sha256 not in (None, sha256):
            raise _changed(stored)
        path = f"{PARTS}/{part_name(item)}.parquet"
        with self.ledger.folder.new_file(path) as part, ExitStack() as stack:
            writer = None
            for window in self._windows(item, stored):
                table = self._table(window, counts)
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(part.stream, table.schema))
                writer.write_table(table)
                rejects += window.rejects
                progress.advance(len(window.rows) + len(window.rejects))
            rows = counts.rows + len(rejects)
            if writer is None or digest(stored, item) != sha256:
                raise _changed(stored)
            if item.row_group is not None and rows != item.rows:
                raise _changed(stored)
            writer.close()
            record = part.finish()
        return self.ledger.finish(item, record, rejects, counts, sha256)

    def _windows(self, item: WorkItem, stored: StoredFile) -> Iterator[RowWindow]:
        import pyarrow as pa  # noqa: PLC0415  (optional)

        reader = self._readers[item.file]
        if item.row_group is None:
            yield from reader.text_rows(stored.read(item.start, item.end), item.row)
            return
        with stored.open() as stream:
            try:
                yield from reader.table_rows(stream, item.row_group, item.row)
            except (pa.ArrowException, OSError) as error:
                name = f"{stored.name}, row group {item.row_group}"
                raise unreadable(name, error) from error

    def _table(self, window: RowWindow, counts: RowCounts) -> Any:  # noqa: ANN401  (no types)
        """Return the rows of a window as an arrow table, and count them."""
        import pyarrow as pa  # noqa: PLC0415  (optional)

        scored = self._scorer.score(window.examples)
        counts.add(len(window.rows), sum(scored.truncated), _count(scored))
        keep = self._first.keep
        table = window.table
        if table is None:
            columns = [[row[index] for row in window.kept] for index in range(len(keep))]
            arrays = [pa.array(column, pa.string()) for column in columns]
            table = pa.RecordBatch.from_arrays(arrays, names=list(keep))
        added = {ROW: pa.array(window.rows, pa.int64())}
        kind, number, text = self._scorer.manifest.task.kind, pa.float32(), pa.string()
        if kind is TaskKind.MULTI_LABEL:
            number, text = pa.list_(number), pa.list_(text)
        if kind is not TaskKind.REGRESSION:
            added[LABEL] = pa.array(scored.labels, text)
        added[SCORE] = pa.array(scored.scores, number)
        added[TRUNCATED] = pa.array(scored.truncated, pa.bool_())
        names = [*keep, *added]
        arrays = [*(table.column(name) for name in keep), *added.values()]
        return pa.Table.from_arrays(arrays, names=names).replace_schema_metadata(self._metadata())

    def _metadata(self) -> dict[str, str]:
        """Return the metadata of a part: model, engine and proof."""
        plan, parity = self.ledger.plan, self._scorer.record.parity
        proof = None if parity is None else parity.model_dump(mode="json")
        return {
            "pipework.model": plan.model,
            "pipework.engine": plan.engine.model_dump_json(),
            "pipework.proof": json.dumps(proof),
        }

    def _plan(
        self, keep: tuple[str, ...], files: Sequence[InputFile], items: Sequence[WorkItem]
    ) -> BulkPlan:
        manifest, record = self._scorer.manifest, self._scorer.record
        parity = record.parity
        return BulkPlan(
            model=manifest.identity.name,
            task=manifest.task,
            tokenizer=manifest.input.tokenizer.sha256,
            engine=EngineIdentity(
                name=record.name,
                files=tuple(file.sha256 for file in record.files),
                rows=None if parity is None else parity.rows,
                max_abs_diff=None if parity is None else parity.max_abs,
            ),
            columns=tuple(self._first.names.values()),
            keep=keep,
            files=tuple(files),
            items=tuple(items),
        )

    def _source(self, stored: StoredFile) -> Source:
        """Return how to read a file: as the training data, but for its format."""
        source = Source.of(self._scorer.manifest.data.reading, Path(stored.name)).unlabelled()
        if self._options.columns is not None:
            source = source.with_columns(self._options.columns)
        suffix, columns = source.path.suffix, source.columns
        if (
            suffix == ".txt"
            and self._options.columns is None
            and is_text_list(stored.first_line(), columns)
        ):
            columns = replace(columns, text=TEXT)
            return replace(source, columns=columns, format=Format.TEXT)
        if suffix in (PARQUET, ".jsonl"):  # its columns have no numbers
            pair = columns.text_pair
            columns = replace(
                columns,
                text=column_name(columns.text, TEXT),
                text_pair=None if pair is None else column_name(pair, "text_pair"),
            )
        known = source.format if suffix == PARQUET else SUFFIXES[suffix]
        return replace(source, columns=columns, format=known)


def _changed(stored: StoredFile) -> DataError:
    message = f"{stored.name} has changed since the job was planned"
    return DataError(message, "restore the file, or use another --out folder")


def _count(scored: ScoredBatch) -> Counter[str]:
    labels = (label if isinstance(label, list) else [label] for label in scored.labels)
    return Counter(name for names in labels for name in names)
