"""Stored results of a server, of bulk jobs, and of `pipe bench` compared with perf_analyzer."""

from collections.abc import Iterator
from statistics import mean, median
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.progress import counted
from pipework.record import Record


class Memory(Record):
    """Resident memory of a server under texts of all lengths, sampled once a second."""

    minutes: float
    after_first_minute_mib: float
    at_end_mib: float
    peak_mib: float


class ServingResult(Record):
    """A server under load, with the load generator on the same processors.

    `offline_texts_per_s` are rates of the engine alone in the server's largest batches, measured
    in turns with the rest; `batch_ms` is the median time of one such batch. The closed-loop rates
    are means over the turns: `several_texts_per_s` with `several` texts per request,
    `single_texts_per_s` (the peak) with single texts, and `more_clients_texts_per_s` with single
    texts of `more_clients` clients. `half`, `double` and `after` are open-loop levels with single
    texts at half the peak, at twice the peak, and at half the peak immediately after the overload.
    `peak` is one of the levels that the peak is the mean of.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["serving"] = "serving"
    model: str
    engine: str
    texts: str
    batch_tokens: int
    offline_texts_per_s: tuple[float, ...]
    batch_ms: float
    several_texts_per_s: float
    several: int
    single_texts_per_s: float
    more_clients: int | None = None
    more_clients_texts_per_s: float | None = None
    half: Level
    double: Level
    peak: Level | None = None
    after: Level
    memory: Memory | None
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def offline(self) -> float:
        """Mean texts/s of the engine alone."""
        return mean(self.offline_texts_per_s)


HEAD = ("model", "load", "target", "measured")
BEFORE_AND_AFTER = 2  # offline rates in results that predate measuring in turns
Row = tuple[str, str, str, str]


def serving_rows(result: ServingResult) -> list[Row]:
    """Return the table rows of a result."""
    alone, peak = result.offline, result.single_texts_per_s
    turns = ", ".join(f"{rate:,.0f}" for rate in result.offline_texts_per_s)
    when = "before, after" if len(result.offline_texts_per_s) == BEFORE_AND_AFTER else "in turns"
    rows = [
        ("engine without server", "", f"{alone:,.0f} texts/s ({when}: {turns})"),
        (
            f"{result.several} texts per request",
            "95 % of the engine",
            _of(result.several_texts_per_s, alone),
        ),
        (f"single texts{_clients(result)}", "80 % of the engine", _of(peak, alone)),
        *_more_clients(result),
        (
            "open loop at half the peak",
            f"p99 < {tables.ms(4 * result.batch_ms)} ms (4 batches)",
            f"p99 {_p99(result.half)} ms",
        ),
        (
            "open loop at twice the peak: completed",
            "90 % of the peak",
            _of(result.double.goodput, peak),
        ),
        ("open loop at twice the peak: rejected", "< 50 ms", _refused(result.double)),
        *_processors(result),
        ("open loop at half the peak, after overload", "as before", f"p99 {_p99(result.after)} ms"),
    ]
    if result.memory is not None:
        memory = result.memory
        rows.append(
            (
                f"{memory.minutes:g} minutes of texts of all lengths",
                "constant after 1 minute",
                _memory(memory),
            )
        )
    name = f"{result.model}, {result.engine}"
    return [(name, *row) for row in rows]


def _clients(result: ServingResult) -> str:
    clients = None if result.peak is None else result.peak.concurrency
    return "" if clients is None else f", peak with {clients} clients"


def _more_clients(result: ServingResult) -> list[tuple[str, str, str]]:
    if result.more_clients_texts_per_s is None:
        return []
    load = f"single texts, {result.more_clients} clients"
    return [(load, "80 % of the engine", _of(result.more_clients_texts_per_s, result.offline))]


def _processors(result: ServingResult) -> list[tuple[str, str, str]]:
    """Return the CPU use of server and load generator, which share the processors."""
    levels = (result.double, result.peak)
    uses = [level.server for level in levels if level is not None and level.server is not None]
    if len(uses) < len(levels) or any(use.generator_cores is None for use in uses):
        return []
    double, peak = (f"{use.cores:.2f} + {use.generator_cores:.2f}" for use in uses)
    cores = f"{double}; at the peak {peak}"
    return [("open loop at twice the peak: cores of server + load generator", "", cores)]


def _memory(memory: Memory) -> str:
    first, end = f"{memory.after_first_minute_mib:,.0f}", f"{memory.at_end_mib:,.0f}"
    return f"{first} MiB after 1 minute, {end} at the end, maximum {memory.peak_mib:,.0f}"


def _of(value: float, reference: float) -> str:
    return f"{value:,.0f} texts/s, {value / reference:.0%}"


def _p99(level: Level) -> str:
    return "-" if level.latency_ms is None else tables.ms(level.latency_ms.p99)


def _refused(level: Level) -> str:
    if level.refused_ms is None:
        return "none"
    times = level.refused_ms
    shown = (
        f"p50 {tables.ms(times.p50)}, p99 {tables.ms(times.p99)}, maximum {tables.ms(times.max)} ms"
    )
    return f"{level.refused:,} of {level.sent:,}: {shown}"


class GeneratorReport(Record):
    """Figures that a load generator reports for a closed loop. Times are in milliseconds."""

    texts_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Pair(Record):
    """Two load generators measuring one server in turns with `clients` clients, by round."""

    wire: str
    texts_per_request: int
    clients: int
    pipework: tuple[GeneratorReport, ...]
    perf_analyzer: tuple[GeneratorReport, ...]

    def ratio(self, metric: str) -> float:
        """Return pipe bench's value divided by perf_analyzer's: the median over the rounds."""
        rounds = zip(self.pipework, self.perf_analyzer, strict=True)
        return median(
            float(getattr(ours, metric) / getattr(theirs, metric)) for ours, theirs in rounds
        )


class Stall(Record):
    """A server that is stopped once for `seconds` while a generator measures it.

    `open_p99_ms` is measured by an open loop of `rate` requests/s, `closed_p99_ms` by
    perf_analyzer with one client; the `calm` fields are the same loads without the stall.
    """

    seconds: float
    rate: float
    open_p99_ms: float
    open_calm_p99_ms: float
    closed_p99_ms: float
    closed_calm_p99_ms: float


class AgreementResult(Record):
    """`pipe bench` and perf_analyzer, the load generator of NVIDIA Triton, on one server."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["agreement"] = "agreement"
    model: str
    texts: str
    pairs: tuple[Pair, ...]
    stall: Stall
    command: tuple[str, ...]
    provenance: Provenance


AGREEMENT_HEAD = ("model", "requests", "clients", "metric", "pipe bench", "perf_analyzer", "ratio")


def agreement_rows(result: AgreementResult) -> Iterator[tuple[str, ...]]:
    """Yield the table rows of a result."""
    for pair in result.pairs:
        requests = f"{pair.wire}, {_texts(pair.texts_per_request)}"
        for field, name in (("texts_per_s", "texts/s"), ("p50_ms", "p50 ms"), ("p95_ms", "p95 ms")):
            values = (
                median(getattr(report, field) for report in reports)
                for reports in (pair.pipework, pair.perf_analyzer)
            )
            cells = (f"{v:,.0f}" if field == "texts_per_s" else tables.ms(v) for v in values)
            ratio = f"{pair.ratio(field):.2f}"
            yield (result.model, requests, f"{pair.clients}", name, *cells, ratio)
    stall = result.stall
    yield (
        result.model,
        f"http, {_texts(1)}, server stopped for {1000 * stall.seconds:.0f} ms",
        f"{stall.rate:.0f} requests/s, 1",
        "p99 ms",
        f"{tables.ms(stall.open_calm_p99_ms)} → {tables.ms(stall.open_p99_ms)}",
        f"{tables.ms(stall.closed_calm_p99_ms)} → {tables.ms(stall.closed_p99_ms)}",
        "",
    )


def _texts(count: int) -> str:
    return f"{count} text{'s' * (count > 1)} per request"


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


class BulkResult(Record):
    """Bulk jobs of the same rows: uninterrupted, killed again and again, and as two shards.

    The samples are of the uninterrupted job.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["bulk"] = "bulk"
    model: str
    engine: str
    files: int
    row_groups: int
    jobs: tuple[ScoredJob, ...]
    samples: tuple[JobSample, ...]
    rates: BulkRates
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def half_peaks_mib(self) -> tuple[float, float]:
        """The peak memory until half of the rows were finished, and after that."""
        half = self.jobs[0].rows / 2
        first = [sample.mib for sample in self.samples if sample.rows < half]
        second = [sample.mib for sample in self.samples if sample.rows >= half]
        return max(first), max(second)


BULK_HEAD = ("model", "job", "target", "measured")


def bulk_rows(result: BulkResult) -> Iterator[Row]:
    """Yield the table rows of a result."""
    name = f"{result.model}, {result.engine}"
    whole = result.jobs[0]
    for job in result.jobs:
        same = job.sha256 == whole.sha256 and job.parts == whole.parts
        parts = (
            f"{job.parts:,} parts" if job is whole else "parts " + ("equal" if same else "DIFFER")
        )
        once = job.rows == job.distinct_rows == whole.rows
        shown = f"{job.rows:,} rows, {'each once' if once else 'NOT each once'}; {parts}"
        target = "" if job is whole else "each row once, equal parts"
        yield name, job.name, target, f"{shown}; {job.seconds:,.0f} s"
    first, second = result.half_peaks_mib
    memory = f"peak {first:,.0f} MiB in the first half of the rows, {second:,.0f} in the second"
    yield name, "memory of the uninterrupted job", "constant", memory
    rates = result.rates
    others = f"other programs used {median(rates.other_cores):.1f} processors"
    used = f"{len(rates.other_cores)} rounds; {others}"
    for batch, engine in rates.engine.items():
        compared = f"compared with the engine alone at {counted(batch, 'text')} per call"
        values = f"{median(rates.bulk.per_s):,.0f} rows/s and {median(engine.per_s):,.0f} texts/s"
        wall, cpu = rates.ratios(batch)
        ratio = f"{values}: {wall:.0%}; per CPU second {cpu:.0%} ({used})"
        yield name, f"{rates.rows:,} rows, {compared}", "95 % of the engine", ratio
