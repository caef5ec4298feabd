"""A bulk job: scores the work items of a shard, and skips those that are finished."""

import hashlib
import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pipework.errors import CheckFailedError, DataError
from pipework.progress import Progress
from pipework.run_folder.manifest import read_classifier
from pipework.serve.bulk.executors import Executor, Shard, executor, parse_shard
from pipework.serve.bulk.input_files import InputFile, WorkItem
from pipework.serve.bulk.job_folder import JobFolder, disk_errors, job_folder
from pipework.serve.bulk.ledger import (
    BulkPlan,
    EngineIdentity,
    FinishedItem,
    Ledger,
    RowCounts,
    part_path,
    planned_engine,
)
from pipework.serve.bulk.part_tables import part_table, row_counts
from pipework.serve.bulk.planning import plan_files, row_readers
from pipework.serve.bulk.records import Reject
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.bulk.stored_files import StoredFile, changed, find_files
from pipework.serve.engines.first_stage import served_record


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkOptions:
    """Options of a job.

    Attributes:
        pattern: a path, folder, glob pattern or URL of the input.
        out: the job folder: a path, or a URL of an object store.
        engine: name of an engine; None for the default.
        columns: columns that differ from the training data, see `Source.with_columns`.
        keep: the columns that are copied to the output; None for all.
        shard: "I/N" for the I-th of N shards, from 1, or "auto", see `parse_shard`; None for all.
        on: the Ray cluster, see `executor`; None for this process.
        allow_skipped: whether files with unknown suffixes are left out, see `find_files`.
        scores: whether each label has a column of its scores.
    """

    pattern: str
    out: str | Path
    engine: str | None = None
    columns: str | None = None
    keep: Sequence[str] | None = None
    shard: str | None = None
    on: str | None = None
    allow_skipped: bool = False
    scores: bool = False


@dataclass(kw_only=True, slots=True)
class BulkSummary:
    """The result of a shard.

    Attributes:
        items, skipped: work items of the shard, and those that were already finished.
        helped: work items of other shards that this process has scored.
        planned, finished: work items of the job, and those that all processes have finished.
        counts: numbers of rows.
        failures: why some items or files of the shard are not scored; all others are.
    """

    items: int
    skipped: int = 0
    helped: int = 0
    planned: int
    finished: int
    counts: RowCounts = field(default_factory=RowCounts)
    failures: list[CheckFailedError] = field(default_factory=list)


def score_files(run: Path, options: BulkOptions, progress: Progress) -> BulkSummary:
    """Score the files of a job, or one shard of them.

    Raises:
        ConfigError: an option is invalid, or the job folder cannot be used, for example because
            it belongs to another job.
        TransientError: a store or a disk has failed, or is full.
        ChangedFileError: the input of a finished item, or a file of the engine, has changed.
    """
    shard = parse_shard(options.shard, os.environ)
    folder = job_folder(str(options.out))
    with disk_errors():
        stored = find_files(
            options.pattern, folder, allow_skipped=options.allow_skipped, progress=progress
        )
    engine = options.engine or planned_engine(folder)
    record = served_record(read_classifier(run), engine)
    with (
        disk_errors(),
        executor(options.on, record) as place,
        Scorer(run.absolute(), engine, threads=place.threads, scores=options.scores) as scorer,
    ):
        job = BulkJob(scorer, stored, folder, options)
        return job.run(shard, place, progress)


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
            DataError: no file has rows.
        """
        self._scorer = scorer
        self._stored = stored
        planned = plan_files(stored, scorer.manifest.data, options.columns)
        self._readers = row_readers(planned, options.keep, scorer)
        files = [one.file for one in planned]
        items = [item for one in planned for item in one.items]
        self.ledger = Ledger(folder, self._plan(files, items))

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
        self.ledger.check(self._plan(plan.files, plan.items))

    def _plan(self, files: Sequence[InputFile], items: Sequence[WorkItem]) -> BulkPlan:
        first = next(iter(self._readers.values()))
        manifest = self._scorer.manifest
        return BulkPlan(
            model=manifest.identity.name,
            task=manifest.task,
            tokenizer=manifest.input.tokenizer.sha256,
            windows=manifest.windows,
            engine=EngineIdentity.of(self._scorer.record, self._scorer.cascade),
            columns=tuple(first.names.values()),
            keep=tuple(first.keep),
            scores=self._scorer.scores,
            files=tuple(files),
            items=tuple(items),
        )

    def run(self, shard: Shard, place: Executor, progress: Progress) -> BulkSummary:
        """Score the items of a shard, and skip finished ones."""
        plan = self.ledger.plan
        items = [item for item in plan.items if item.number in shard]
        planned = len(plan.items)
        summary = BulkSummary(items=len(items), planned=planned, finished=planned)
        numbered = enumerate(plan.files)
        problems = [file.problem for number, file in numbered if file.problem and number in shard]
        for problem in problems:
            progress.note(problem)
        damaged = list[str]()
        part = "" if shard.count == 1 else f", shard {shard}"
        title = f"score with {plan.engine.name}{place.title}{part}"
        with progress.stage(title, sum(item.rows for item in items), "rows"):
            for outcome in place.score(self, self._missing(items, summary, progress), progress):
                if isinstance(outcome, DataError):
                    progress.note(str(outcome))
                    damaged.append(str(outcome))
                else:
                    summary.counts += outcome.counts
        if shard.helps:
            summary.helped = self._help(shard, place, progress)
        if damaged:
            failed = f"{len(damaged)} of {len(items)} work items cannot be read"
            hint = "restore the files and run the command again"
            summary.failures.append(CheckFailedError(f"{failed}; first: {damaged[0]}", hint))
        if problems:
            failed = f"{len(problems)} of {len(plan.files)} files were not scored"
            hint = "restore or remove them, and score them with another --out folder"
            summary.failures.append(CheckFailedError(f"{failed}; first: {problems[0]}", hint))
        if summary.items < planned or damaged:  # else all are finished: no need to list the folder
            summary.finished = planned - len(self.ledger.unfinished())
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

    def _help(self, shard: Shard, place: Executor, progress: Progress) -> int:
        """Score unfinished items of other shards, and return how many.

        The order is random, and another process may score the same item at the same time: both
        write the same part. If their processors are of different kinds, the parts may differ, and
        the next command scores the item again. Only the shard of an item reports that it cannot be
        read.
        """
        left = [item for item in self.ledger.unfinished() if item.number not in shard]
        random.Random(shard.index).shuffle(left)  # noqa: S311  (not security-relevant)
        if not left:
            return 0
        rows = sum(item.rows for item in left)
        with progress.stage("score work items of other shards", rows, "rows"):
            outcomes = place.score(self, self._still_left(left, progress), progress)
            return sum(not isinstance(outcome, DataError) for outcome in outcomes)

    def _still_left(self, items: Sequence[WorkItem], progress: Progress) -> Iterator[WorkItem]:
        for item in items:
            if self.ledger.has_entry(item):
                progress.advance(item.rows)
            else:
                yield item

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
            raise changed(stored)
        rejects = list[Reject]()
        counts = RowCounts()
        with self.ledger.folder.new_file(part_path(item)) as part, ExitStack() as stack:
            writer = None
            for window in self._readers[item.file].windows(item, stored, data):
                predicted = self._scorer.columns(window.examples)
                table = part_table(window, predicted, stored.name, self._metadata())
                counts += row_counts(window, predicted)
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(part.stream, table.schema))
                writer.write_table(table)
                rejects += window.rejects
                progress.advance(len(window.rows) + len(window.rejects))
            rows = counts.rows + counts.rejected
            if writer is None or (item.row_group is not None and rows != item.rows):
                raise changed(stored)
            # The plan has no digest of the bytes of parquet. A change that is found here and not by
            # the next command spares scoring the rest of the file in vain.
            kept = item.sha256 is not None or stored.unchanged()
            if not kept and stored.digest(item.start, item.end) != sha256:
                raise changed(stored)
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
