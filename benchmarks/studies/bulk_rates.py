"""Compare the rate of a bulk job with its engine alone, in turns."""

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipework.benchmarks.run import OFFLINE_BATCHES
from pipework.benchmarks.studies.records.bulk_results import BulkRates, WorkRate
from pipework.data.examples import Example, Source
from pipework.errors import ConfigError
from pipework.progress import NullProgress, Progress
from pipework.run_folder.manifest import read_classifier
from pipework.scoring.evaluation import Engine
from pipework.serve.bulk.job import BulkJob, BulkOptions
from pipework.serve.bulk.job_folder import LocalFolder
from pipework.serve.bulk.records import WINDOW
from pipework.serve.bulk.scorer import Scorer
from pipework.serve.bulk.stored_files import find_files
from pipework.serve.engines import open_first
from pipework.text.encoding import Encoding, open_encoder
from pipework.train.config.run_config import SAMPLE

FILES = 4
GROUP_ROWS = (1, 10, 300, 2000, 10_000)
ROUND_ROWS = 5000
SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
ENGINE_TEXTS = 20_000
ENGINE_S = 1.0


def bulk_rates(run: Path, work: Path, rows: int, progress: Progress) -> BulkRates:
    """Measure parts of a bulk job of a number of rows and the engine alone in turns."""
    files, out, others = work / "rate-in", work / "rates", list[float]()
    write_rows(files, rows, seed=1, groups=(ROUND_ROWS,))
    manifest = read_classifier(run)
    encoder = open_encoder(run, manifest)
    table = pq.read_table(files, columns=["text"])["text"].slice(0, ENGINE_TEXTS)
    encodings = encoder.encode([Example(text=text) for text in table.to_pylist()])
    bulk, engine_rates = Rounds(), {batch: Rounds() for batch in (*OFFLINE_BATCHES, WINDOW)}
    with Scorer(run) as scorer, open_first(run, manifest)[1] as engine:
        options = BulkOptions(pattern=str(files), out=out, keep=["id"])
        job = BulkJob(scorer, find_files(str(files)), LocalFolder(out), options)
        for item in job.ledger.plan.items:
            with other_cores(others):
                with bulk.measured() as count:
                    count.append(job.score(item, NullProgress()).counts.rows)
                for batch, rounds in engine_rates.items():
                    rounds.measure(engine, encodings, batch)
            progress.note(f"round {len(others)}: {bulk.per_s[-1]:,.0f} rows/s")
    return BulkRates(
        rows=rows,
        bulk=bulk.rate(),
        engine={batch: rounds.rate() for batch, rounds in engine_rates.items()},
        other_cores=tuple(others),
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
    """Write parquet files with row groups of these sizes.

    Raises:
        ConfigError: the folder exists.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        message = f"{folder} has the rows of another study"
        raise ConfigError(message, "choose another --work, or delete it") from error
    rng, first = random.Random(seed), 0  # noqa: S311  (not for security)
    texts = [row.text for row in Source(path=SAMPLE / "train.tsv").rows()]
    for index in range(FILES):
        end = rows * (index + 1) // FILES
        with pq.ParquetWriter(folder / f"rows-{index}.parquet", SCHEMA) as writer:
            while first < end:
                last = min(end, first + rng.choice(groups))
                chosen = [_random_text(texts, rng) for _ in range(first, last)]
                columns = [pa.array(range(first, last), pa.int64()), pa.array(chosen)]
                writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
                first = last


def _random_text(texts: Sequence[str], rng: random.Random) -> str:
    """Return the beginnings of two texts, joined."""
    first, second = rng.choice(texts), rng.choice(texts)
    return first[: rng.randint(3, len(first))] + second[: rng.randint(0, len(second))]
