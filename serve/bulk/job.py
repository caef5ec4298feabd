"""A bulk job: scores the work items of a shard, and skips those that are finished."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pipework.errors import ConfigError, DataError, without_password
from pipework.progress import Progress
from pipework.run_folder.manifest import read_classifier
from pipework.serve.bulk.executors import Executor, executor, parse_shard
from pipework.serve.bulk.file_sources import file_source
from pipework.serve.bulk.input_files import (
    InputFile,
    StoredFile,
    WorkItem,
    find_files,
    plan_file,
)
from pipework.serve.bulk.job_folder import JobFolder, job_folder
from pipework.serve.bulk.ledger import (
    PARTS,
    BulkPlan,
    EngineIdentity,
    FinishedItem,
    Ledger,
    RowCounts,
    part_name,
)
from pipework.serve.bulk.part_tables import ROW, part_table, row_counts
from pipework.serve.bulk.records import Reject, RowReader
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.engines import computes_on_gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkOptions:
    """Options of a job.

    Attributes:
        pattern: a path, folder, glob pattern or URL of the input.
        out: the job folder: a path, or a URL of an object store.
        engine: name of an engine; None for the default.
        columns: columns that differ from the training data, see `Source.with_columns`.
        keep: the columns that are copied to the output; None for all.
        shard: "I/N" for the I-th of N shards, from 1; None for the shard of the environment.
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
        training = scorer.manifest.data.reading
        sources = [file_source(file, training, options.columns) for file in stored]
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
            for window in self._readers[item.file].windows(item, stored, data):
                predicted = self._scorer.model.columns(window.examples)
                table = part_table(window, predicted, self._metadata())
                counts += row_counts(window, predicted)
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
            if item.sha256 is None and not stored.unchanged() and stored.digest(item) != sha256:
                raise _changed(stored)
            writer.close()
            record = part.finish()
        read = item.model_copy(update={"sha256": sha256})
        return self.ledger.finish(read, stored, record, rejects, counts)

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
