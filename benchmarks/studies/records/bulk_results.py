"""Stored results of bulk jobs."""

from collections.abc import Iterator
from statistics import median
from typing import ClassVar, Literal

from pipework.benchmarks.studies.records.study_result import StudyResult
from pipework.progress import counted
from pipework.record import Record


class ScoredJob(Record):
    """A bulk job: `kills` processes of it were killed, and `seconds` include their restarts.

    `distinct_rows` counts the values of the column that numbers the rows of the input; `sha256` is
    the digest of the names and digests of all parts.
    """

    name: str
    processes: int
    kills: int
    seconds: float
    parts: int
    rows: int
    distinct_rows: int
    sha256: str


class JobSample(Record):
    """A moment of a job: rows of finished items, and resident memory of the process."""

    seconds: float
    rows: int
    mib: float


class WorkRate(Record):
    """Rates by round: inputs per second, and per CPU second of the process."""

    per_s: tuple[float, ...]
    per_cpu_s: tuple[float, ...]


class BulkRates(Record):
    """Rates of a bulk job of `rows` rows and of the engine alone, by texts per call, in turns.

    `other_cores` is the number of processors that other programs used, by round.
    """

    rows: int
    bulk: WorkRate
    engine: dict[int, WorkRate]
    other_cores: tuple[float, ...]

    def ratios(self, batch: int) -> tuple[float, float]:
        """Return the medians of the rounds of job divided by engine: per second, per CPU second."""
        alone = self.engine[batch]
        pairs = ((self.bulk.per_s, alone.per_s), (self.bulk.per_cpu_s, alone.per_cpu_s))
        wall, cpu = (
            median(job / engine for job, engine in zip(*pair, strict=True)) for pair in pairs
        )
        return wall, cpu


class BulkResult(StudyResult):
    """Bulk jobs of the same rows: uninterrupted, killed again and again, and as two shards.

    The samples are of the uninterrupted job.
    """

    TABLE: ClassVar[str] = "bulk"
    HEAD: ClassVar[tuple[str, ...]] = ("model", "job", "target", "measured")
    kind: Literal["bulk"] = "bulk"
    model: str
    engine: str
    files: int
    row_groups: int
    jobs: tuple[ScoredJob, ...]
    samples: tuple[JobSample, ...]
    rates: BulkRates
    command: tuple[str, ...]

    @property
    def half_peaks_mib(self) -> tuple[float, float]:
        """The peak memory until half of the rows were finished, and after that."""
        half = self.jobs[0].rows / 2
        first = [sample.mib for sample in self.samples if sample.rows < half]
        second = [sample.mib for sample in self.samples if sample.rows >= half]
        return max(first), max(second)

    def table_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the rows of the jobs, of the memory, and of the rates by texts per call."""
        name = f"{self.model}, {self.engine}"
        whole = self.jobs[0]
        for job in self.jobs:
            same = job.sha256 == whole.sha256 and job.parts == whole.parts
            parts = (
                f"{job.parts:,} parts"
                if job is whole
                else "parts " + ("equal" if same else "DIFFER")
            )
            once = job.rows == job.distinct_rows == whole.rows
            shown = f"{job.rows:,} rows, {'each once' if once else 'NOT each once'}; {parts}"
            target = "" if job is whole else "each row once, equal parts"
            yield name, job.name, target, f"{shown}; {job.seconds:,.0f} s"
        first, second = self.half_peaks_mib
        memory = f"peak {first:,.0f} MiB in the first half of the rows, {second:,.0f} in the second"
        yield name, "memory of the uninterrupted job", "constant", memory
        rates = self.rates
        others = f"other programs used {median(rates.other_cores):.1f} processors"
        used = f"{len(rates.other_cores)} rounds; {others}"
        for batch, engine in rates.engine.items():
            compared = f"compared with the engine alone at {counted(batch, 'text')} per call"
            values = (
                f"{median(rates.bulk.per_s):,.0f} rows/s and {median(engine.per_s):,.0f} texts/s"
            )
            wall, cpu = rates.ratios(batch)
            ratio = f"{values}: {wall:.0%}; per CPU second {cpu:.0%} ({used})"
            yield name, f"{rates.rows:,} rows, {compared}", "95 % of the engine", ratio
