"""`pipe bench` beside perf_analyzer as Markdown."""

from collections.abc import Iterator
from statistics import median

from pipework.benchmarks.report import tables
from pipework.benchmarks.studies.agreement_results import AgreementResult

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
