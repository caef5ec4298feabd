"""Stored results of a server under load."""

from statistics import mean
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record


class Memory(Record):
    """Resident memory of the server while texts of all lengths came, sampled once a second."""

    minutes: float
    after_first_minute_mib: float
    at_end_mib: float
    peak_mib: float


class ServingResult(Record):
    """A server under load, with its generator on the same processors.

    `offline_texts_per_s` is of the engine alone, in the server's largest batches, in turns with the
    rest; `batch_ms` is the median time of one such batch. `several_texts_per_s` and
    `single_texts_per_s`, the peak, are means over the turns of clients that wait for their answers,
    `more_clients_texts_per_s` that of `more_clients` with single texts;
    `half`, `double` and `after` are single texts at half of the peak, at twice it, and at half of
    it at once after that; `peak` is one of the levels that the peak is the mean of.
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
        """Texts a second of the engine alone."""
        return mean(self.offline_texts_per_s)


HEAD = ("model", "load", "wanted", "seen")
BEFORE_AND_AFTER = 2  # values of older results
Row = tuple[str, str, str, str]


def serving_rows(result: ServingResult) -> list[Row]:
    """Return the rows of a result."""
    alone, peak = result.offline, result.single_texts_per_s
    turns = ", ".join(f"{one:,.0f}" for one in result.offline_texts_per_s)
    when = "before, after" if len(result.offline_texts_per_s) == BEFORE_AND_AFTER else "in turns"
    rows = [
        ("its engine alone", "", f"{alone:,.0f} texts/s ({when}: {turns})"),
        (f"{result.several} texts a request", "95 % of it", _of(result.several_texts_per_s, alone)),
        (f"single texts{_clients(result)}", "80 % of it", _of(peak, alone)),
        *_more_clients(result),
        (
            "half of the peak, open",
            f"p99 under {tables.ms(4 * result.batch_ms)} ms, 4 batches",
            f"p99 {_p99(result.half)} ms",
        ),
        ("twice the peak: answered", "90 % of the peak", _of(result.double.in_time, peak)),
        ("twice the peak: refused", "under 50 ms", _refused(result.double)),
        *_processors(result),
        ("half again, at once", "as before", f"p99 {_p99(result.after)} ms"),
    ]
    if result.memory is not None:
        memory = result.memory
        rows.append(
            (
                f"{memory.minutes:g} minutes of all lengths",
                "flat after a minute",
                _memory(memory),
            )
        )
    name = f"{result.model}, {result.engine}"
    return [(name, *row) for row in rows]


def _clients(result: ServingResult) -> str:
    clients = None if result.peak is None else result.peak.concurrency
    return "" if clients is None else f", the peak of {clients} clients"


def _more_clients(result: ServingResult) -> list[tuple[str, str, str]]:
    if result.more_clients_texts_per_s is None:
        return []
    load = f"single texts, {result.more_clients} clients"
    return [(load, "80 % of it", _of(result.more_clients_texts_per_s, result.offline))]


def _processors(result: ServingResult) -> list[tuple[str, str, str]]:
    """Return what answers and what only asks: beside each other on the same processors."""
    levels = (result.double, result.peak)
    uses = [level.server for level in levels if level is not None and level.server is not None]
    if len(uses) < len(levels) or any(use.generator_cores is None for use in uses):
        return []
    seen = [f"{use.cores:.2f} + {use.generator_cores:.2f}" for use in uses]
    words = f"{seen[0]}; at the peak {seen[1]}"
    return [("twice the peak: processors of the server + of what asks", "", words)]


def _memory(memory: Memory) -> str:
    first, end = f"{memory.after_first_minute_mib:,.0f}", f"{memory.at_end_mib:,.0f}"
    return f"{first} MiB after one, {end} at the end, {memory.peak_mib:,.0f} at most"


def _of(value: float, whole: float) -> str:
    return f"{value:,.0f} texts/s, {value / whole:.0%}"


def _p99(level: Level) -> str:
    return "-" if level.latency_ms is None else tables.ms(level.latency_ms.p99)


def _refused(level: Level) -> str:
    if level.refused_ms is None:
        return "none"
    times = level.refused_ms
    shown = (
        f"p50 {tables.ms(times.p50)}, p99 {tables.ms(times.p99)}, at most {tables.ms(times.max)} ms"
    )
    return f"{level.refused:,} of {level.sent:,}: {shown}"
