"""Kill a bulk job again and again: `python -m pipework.benchmarks.studies.bulk`.

Random texts from parts of the sample are scored by `pipe predict --in` without an interruption,
with SIGKILL at random moments, and by two shards at once; the parts of all jobs must be equal. The
memory of the first job is sampled. Then bulk jobs and the engine alone are measured in turns.
Started again with the same `--work`, the study continues with the next job.
"""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipework.benchmarks.load.process_usage import resident_mib
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.run import OFFLINE_BATCHES
from pipework.benchmarks.studies.records.bulk_results import (
    BulkRates,
    BulkResult,
    JobSample,
    ScoredJob,
    WorkRate,
)
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.data.examples import Example, Source
from pipework.data.readers import Columns
from pipework.errors import CheckFailedError, PipeError
from pipework.progress import NullProgress, Progress
from pipework.record import Record
from pipework.run_folder.files import file_digest, write_atomically
from pipework.run_folder.manifest import read_classifier
from pipework.scoring.evaluation import Engine
from pipework.serve.bulk.input_files import find_files
from pipework.serve.bulk.job import BulkJob, BulkOptions
from pipework.serve.bulk.job_folder import TEMPORARY, LocalFolder
from pipework.serve.bulk.ledger import FINISHED, PARTS, PLAN, BulkPlan
from pipework.serve.bulk.records import WINDOW
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.engines import open_first
from pipework.text.encoding import Encoding, open_encoder
from pipework.train.config.run_config import SAMPLE

FILES, GROUP_ROWS, ROUND_ROWS = 4, (1, 10, 300, 2000, 10_000), 5000
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
MOST_SAMPLES, SAMPLE_S, POLL_S = 300, 0.5, 0.02
# The mean time from the first write of a process until it is killed, as a share of the time for the
# rest of the rows divided by the rest of the kills: the job must not end before the last kill.
KILL_SHARE = 0.3
ENGINE_TEXTS, ENGINE_S = 20_000, 1.0


class WholeJob(Record):
    """The uninterrupted job with its samples, as the study stores it between its starts."""

    job: ScoredJob
    samples: tuple[JobSample, ...]


@dataclass(frozen=True, kw_only=True)
class BulkStudy:
    """The run and the folder of a study, and the sizes of its jobs."""

    run: Path
    name: str
    work: Path
    rows: int
    kills: int
    rate_rows: int
    progress: Progress

    def whole(self) -> WholeJob:
        """Score all rows without an interruption and sample the memory."""
        started, samples = time.monotonic(), list[JobSample]()
        with self._started("whole") as process:
            while process.poll() is None:
                mib, rows = round(resident_mib(process.pid), 1), finished_rows(self.work / "whole")
                if mib:
                    seconds = round(time.monotonic() - started, 2)
                    samples.append(JobSample(seconds=seconds, rows=rows, mib=mib))
                time.sleep(SAMPLE_S)
            self._finish("whole", process)
        every = len(samples) // MOST_SAMPLES + 1
        job = self._job("whole", "uninterrupted", time.monotonic() - started)
        return WholeJob(job=job, samples=tuple(samples[::every]))

    def killed(self, whole_s: float) -> ScoredJob:
        """Score all rows with processes that are killed at random moments."""
        started, rng, out = time.monotonic(), random.Random(), self.work / "killed"  # noqa: S311
        for kill in range(self.kills):
            rest = (1 - finished_rows(out) / self.rows) / (self.kills - kill)
            before = temporary_files(out)
            with self._started("killed") as process:
                while process.poll() is None and temporary_files(out) <= before:
                    time.sleep(POLL_S)
                time.sleep(rng.uniform(0, 2 * KILL_SHARE * rest * whole_s))
                if process.poll() is not None:
                    message = f"the job ended before kill {kill + 1} of {self.kills}"
                    raise CheckFailedError(message, f"see {out}.log, or use more --rows")
                process.kill()
            self.progress.note(f"kill {kill + 1} at {finished_rows(out):,} rows")
        with self._started("killed") as process:
            self._finish("killed", process)
        name = f"{self.kills} times killed at a random moment"
        return self._job("killed", name, time.monotonic() - started, kills=self.kills)

    def sharded(self) -> ScoredJob:
        """Score all rows with two processes at once."""
        started = time.monotonic()
        with self._started("shards", "1/2") as first, self._started("shards", "2/2") as second:
            self._finish("shards", first)
            self._finish("shards", second)
        return self._job("shards", "two shards at once", time.monotonic() - started, processes=2)

    def rates(self) -> BulkRates:
        """Measure parts of a bulk job and the engine alone in turns."""
        files, out, others = self.work / "rate-in", self.work / "rates", list[float]()
        write_rows(files, self.rate_rows, seed=1, groups=(ROUND_ROWS,))
        manifest = read_classifier(self.run)
        encoder = open_encoder(self.run, manifest)
        table = pq.read_table(files, columns=["text"])["text"].slice(0, ENGINE_TEXTS)
        encodings = encoder.encode([Example(text=text) for text in table.to_pylist()])
        bulk, engine_rates = Rounds(), {batch: Rounds() for batch in (*OFFLINE_BATCHES, WINDOW)}
        with Scorer(self.run) as scorer, open_first(self.run, manifest)[1] as engine:
            options = BulkOptions(pattern=str(files), out=out, keep=["id"])
            job = BulkJob(scorer, find_files(str(files)), LocalFolder(out), options)
            for item in job.ledger.plan.items:
                with other_cores(others):
                    with bulk.measured() as count:
                        count.append(job.score(item, NullProgress()).counts.rows)
                    for batch, rounds in engine_rates.items():
                        rounds.measure(engine, encodings, batch)
                self.progress.note(f"round {len(others)}: {bulk.per_s[-1]:,.0f} rows/s")
        return BulkRates(
            rows=self.rate_rows,
            bulk=bulk.rate(),
            engine={batch: rounds.rate() for batch, rounds in engine_rates.items()},
            other_cores=tuple(others),
        )

    def _started(self, name: str, shard: str = "1/1") -> "subprocess.Popen[bytes]":
        """Start or continue a job; its messages are appended to a log."""
        words = [sys.executable, "-P", "-m", "pipework.cli", "predict", str(self.run)]
        words += ["--in", str(self.work / "in"), "--out", str(self.work / name)]
        with (self.work / f"{name}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603  (our own program)
                [*words, "--keep", "id", "--shard", shard], stdout=log, stderr=log
            )

    def _finish(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        if code := process.wait():
            message = f"pipe predict ended with exit code {code}"
            raise PipeError(message, f"see {self.work / name}.log")

    def _job(
        self, folder: str, name: str, seconds: float, *, processes: int = 1, kills: int = 0
    ) -> ScoredJob:
        """Return the job of a folder after counting its rows."""
        parts = sorted((self.work / folder / PARTS).iterdir())
        found = np.concatenate([pq.read_table(part, columns=["id"])["id"] for part in parts])
        digests = "".join(f"{part.name} {file_digest(part)}\n" for part in parts)
        return ScoredJob(
            name=name,
            processes=processes,
            kills=kills,
            seconds=round(seconds, 1),
            parts=len(parts),
            rows=len(found),
            distinct_rows=len(np.unique(found)),
            sha256=hashlib.sha256(digests.encode()).hexdigest(),
        )


@dataclass(kw_only=True, slots=True)
class Rounds:
    """Rates of the rounds of a measurement."""

    per_s: list[float] = field(default_factory=list)
    per_cpu_s: list[float] = field(default_factory=list)

    @contextmanager
    def measured(self) -> Iterator[list[int]]:
        """Measure a round; the block adds the numbers of its inputs to the list."""
        counts, start_s, start_cpu_s = list[int](), time.perf_counter(), time.process_time()
        yield counts
        inputs = sum(counts)
        self.per_s.append(round(inputs / (time.perf_counter() - start_s), 1))
        self.per_cpu_s.append(round(inputs / (time.process_time() - start_cpu_s), 1))

    def measure(self, engine: Engine, encodings: Sequence[Encoding], batch: int) -> None:
        """Measure a round of an engine, from token ids to logits."""
        chunks = cycle(encodings[at : at + batch] for at in range(0, len(encodings), batch))
        end_s = time.perf_counter() + ENGINE_S
        with self.measured() as counts:
            while time.perf_counter() < end_s:
                chunk = next(chunks)
                engine.infer(chunk)
                counts.append(len(chunk))

    def rate(self) -> WorkRate:
        """Return the rates as a record."""
        return WorkRate(per_s=tuple(self.per_s), per_cpu_s=tuple(self.per_cpu_s))


@contextmanager
def other_cores(values: list[float]) -> Iterator[None]:
    """Add the number of processors that other programs use during the block to a list."""
    started, before_s = time.monotonic(), _other_cpu_s()
    yield
    cores = (_other_cpu_s() - before_s) / (time.monotonic() - started)
    values.append(round(max(0.0, cores), 2))


def _other_cpu_s() -> float:
    """Return the CPU seconds of all programs but this one, see proc_stat(5)."""
    line = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, line.split()[1:])
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def write_rows(folder: Path, rows: int, seed: int, groups: Sequence[int] = GROUP_ROWS) -> None:
    """Write parquet files with row groups of these sizes, unless the folder exists."""
    if folder.is_dir():
        return
    rng, first = random.Random(seed), 0  # noqa: S311  (not for security)
    texts = [row.text for row in Source(path=SAMPLE / "train.tsv", columns=Columns()).rows()]
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for index in range(FILES):
        end = rows * (index + 1) // FILES
        with pq.ParquetWriter(partial / f"rows-{index}.parquet", SCHEMA) as writer:
            while first < end:
                last = min(end, first + rng.choice(groups))
                chosen = [_random_text(texts, rng) for _ in range(first, last)]
                columns = [pa.array(range(first, last), pa.int64()), pa.array(chosen)]
                writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
                first = last
    partial.rename(folder)


def _random_text(texts: Sequence[str], rng: random.Random) -> str:
    """Return the beginnings of two texts, joined."""
    first, second = rng.choice(texts), rng.choice(texts)
    return first[: rng.randint(3, len(first))] + second[: rng.randint(0, len(second))]


def temporary_files(out: Path) -> set[str]:
    """Return the temporary files of a job folder, also those of killed processes."""
    with suppress(FileNotFoundError):
        return {path.name for path in (out / TEMPORARY).iterdir()}
    return set()


def finished_rows(out: Path) -> int:
    """Return the number of rows of the finished items of a job folder."""
    with suppress(FileNotFoundError):
        plan = BulkPlan.model_validate_json((out / PLAN).read_bytes())
        return sum(plan.items[int(path.stem[-6:])].rows for path in (out / FINISHED).iterdir())
    return 0


Kept = TypeVar("Kept", bound=Record)


def kept(path: Path, kind: type[Kept], make: Callable[[], Kept]) -> Kept:
    """Return the record in a file, or make it and write the file."""
    if path.is_file():
        return kind.model_validate_json(path.read_bytes())
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # of an earlier start
    record = make()
    write_atomically(path, record.model_dump_json(indent=1).encode())
    return record


def measure(study: BulkStudy, words: tuple[str, ...]) -> BulkResult:
    """Run all jobs, and return the result.

    Raises:
        CheckFailedError: the job ended before the last kill.
        PipeError: the rows cannot be scored.
    """
    work = study.work
    write_rows(work / "in", study.rows, seed=0)
    whole = kept(work / "whole.json", WholeJob, study.whole)
    killed = kept(work / "killed.json", ScoredJob, lambda: study.killed(whole.job.seconds))
    shards = kept(work / "shards.json", ScoredJob, study.sharded)
    rates = kept(work / "rates.json", BulkRates, study.rates)
    plan = BulkPlan.model_validate_json((work / "whole" / PLAN).read_bytes())
    return BulkResult(
        model=study.name,
        engine=plan.engine.name,
        files=len(plan.files),
        row_groups=len(plan.items),
        jobs=(whole.job, killed, shards),
        samples=whole.samples,
        rates=rates,
        command=words,
        provenance=provenance(),
    )


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, and store its result; return 3 if the parts of two jobs differ."""
    parser = study_parser("bulk", __doc__, run=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of the rows and jobs")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the three jobs")
    parser.add_argument("--kills", type=int, default=50, help="processes to kill")
    parser.add_argument("--rate-rows", type=int, default=100_000, help="rows of the measured job")
    options = parser.parse_args(arguments)
    words = command(parser, options)
    values = {name: value for name, value in vars(options).items() if name != "out"}

    def measured(progress: Progress) -> BulkResult:
        return measure(BulkStudy(**values, progress=progress), words)

    result = stored(options.out, measured)
    expected = result.jobs[0].sha256, options.rows, options.rows
    found = {job.name: (job.sha256, job.rows, job.distinct_rows) for job in result.jobs}
    if wrong := [name for name, values in found.items() if values != expected]:
        message = f"parts that differ from those of the uninterrupted job: {', '.join(wrong)}"
        raise CheckFailedError(message, f"compare the folders in {options.work}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
