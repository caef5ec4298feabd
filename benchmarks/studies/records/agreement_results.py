"""Stored results of `pipe bench` compared with perf_analyzer."""

from collections.abc import Iterator
from statistics import median
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record


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


HEAD = ("model", "requests", "clients", "metric", "pipe bench", "perf_analyzer", "ratio")


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
