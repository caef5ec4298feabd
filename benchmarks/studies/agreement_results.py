"""Stored results of `pipe bench` beside perf_analyzer."""

from collections.abc import Iterator
from statistics import median
from typing import Literal

from pipework.benchmarks.report import tables
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record


class Seen(Record):
    """What a load generator says of a closed loop. Times are in milliseconds."""

    texts_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Pair(Record):
    """Two generators in turns at one server, each with so many clients; rounds in order."""

    wire: str
    texts_per_request: int
    clients: int
    pipework: tuple[Seen, ...]
    perf_analyzer: tuple[Seen, ...]

    def ratio(self, what: str) -> float:
        """Return ours by theirs: the median of the rounds' ratios."""
        rounds = zip(self.pipework, self.perf_analyzer, strict=True)
        return median(float(getattr(ours, what) / getattr(theirs, what)) for ours, theirs in rounds)


class Stall(Record):
    """A server that stands still once, for `seconds`, while each generator measures it.

    `open_p99_ms` is of an open loop of `rate` requests/s, `closed_p99_ms` perf_analyzer's with one
    client; `_calm` is of the same load without the stall.
    """

    seconds: float
    rate: float
    open_p99_ms: float
    open_calm_p99_ms: float
    closed_p99_ms: float
    closed_calm_p99_ms: float


class AgreementResult(Record):
    """`pipe bench` beside perf_analyzer, the generator of NVIDIA's Triton, at one server."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["agreement"] = "agreement"
    model: str
    texts: str
    pairs: tuple[Pair, ...]
    stall: Stall
    command: tuple[str, ...]
    provenance: Provenance


HEAD = ("model", "asked", "clients", "", "pipe bench", "perf_analyzer", "ratio")


def agreement_rows(result: AgreementResult) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the README's table."""
    for pair in result.pairs:
        asked = f"{pair.wire}, {pair.texts_per_request} a request"
        for what, name in (("texts_per_s", "texts/s"), ("p50_ms", "p50 ms"), ("p95_ms", "p95 ms")):
            values = (
                median(getattr(one, what) for one in side)
                for side in (pair.pipework, pair.perf_analyzer)
            )
            shown = (f"{one:,.0f}" if what == "texts_per_s" else tables.ms(one) for one in values)
            yield (result.model, asked, f"{pair.clients}", name, *shown, f"{pair.ratio(what):.2f}")
    stall = result.stall
    yield (
        result.model,
        f"http, 1 a request, stands still for {1000 * stall.seconds:.0f} ms",
        f"{stall.rate:.0f} requests/s, 1",
        "p99 ms",
        f"{tables.ms(stall.open_calm_p99_ms)} → {tables.ms(stall.open_p99_ms)}",
        f"{tables.ms(stall.closed_calm_p99_ms)} → {tables.ms(stall.closed_p99_ms)}",
        "",
    )
