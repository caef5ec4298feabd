"""Kill a bulk job again and again: `python -m pipework.benchmarks.studies.bulk`.

Random texts from parts of the sample are scored by `pipe predict --in` without an interruption,
with SIGKILL at random moments, and by two shards at once; the parts of all jobs must be equal. The
memory of the first job is sampled. Then bulk jobs and the engine alone are measured in turns.
"""

import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from pipework.benchmarks.load.process_usage import resident_mib
from pipework.benchmarks.results_schema.provenance import provenance
from pipework.benchmarks.studies.bulk_rates import bulk_rates, write_rows
from pipework.benchmarks.studies.records.bulk_results import BulkResult, JobSample, ScoredJob
from pipework.benchmarks.studies.script import command, report_errors, stored, study_parser
from pipework.errors import CheckFailedError, PipeError
from pipework.progress import Progress
from pipework.run_folder.files import file_digest
from pipework.serve.bulk.job_folder import PARTS, PLAN, TEMPORARY
from pipework.serve.bulk.ledger import FINISHED, BulkPlan

MOST_SAMPLES = 300
SAMPLE_S = 0.5
POLL_S = 0.02
# The mean time from the first write of a process until it is killed, as a share of the time for the
# rest of the rows divided by the rest of the kills: the job must not end before the last kill.
KILL_SHARE = 0.3


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

    def whole(self) -> tuple[ScoredJob, tuple[JobSample, ...]]:
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
        return job, tuple(samples[::every])

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


def temporary_files(out: Path) -> set[str]:
    """Return the temporary files of a job folder, also of killed processes."""
    with suppress(FileNotFoundError):
        return {path.name for path in (out / TEMPORARY).iterdir()}
    return set()


def finished_rows(out: Path) -> int:
    """Return the number of rows of the finished items of a job folder."""
    with suppress(FileNotFoundError):
        plan = BulkPlan.model_validate_json((out / PLAN).read_bytes())
        return sum(plan.items[int(path.stem[-6:])].rows for path in (out / FINISHED).iterdir())
    return 0


def measure(study: BulkStudy, words: tuple[str, ...]) -> BulkResult:
    """Run all jobs, and return the result.

    Raises:
        CheckFailedError: the job ended before the last kill.
        ConfigError: the work folder has the rows of another study.
        PipeError: the rows cannot be scored.
    """
    work = study.work
    write_rows(work / "in", study.rows, seed=0)
    whole, samples = study.whole()
    killed = study.killed(whole.seconds)
    shards = study.sharded()
    rates = bulk_rates(study.run, work, study.rate_rows, study.progress)
    plan = BulkPlan.model_validate_json((work / "whole" / PLAN).read_bytes())
    return BulkResult(
        model=study.name,
        engine=plan.engine.name,
        files=len(plan.files),
        row_groups=len(plan.items),
        jobs=(whole, killed, shards),
        samples=samples,
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
