"""Report of a measurement: headline figures, plots, tables and notes."""

from collections.abc import Sequence
from functools import partial

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.measurement_warnings import notes
from pipework.benchmarks.report.report import Plot, Report, Tile
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult, SloResult

MOST_HISTOGRAMS = 8


def report(result: BenchResult) -> Report:
    """Return the report of a server, or of the engines in this process."""
    calls = "calls" if result.offline else "successful requests"
    return Report(
        heading=result.model,
        line=tables.workload_line(result),
        notes=tuple(notes(result)),
        tiles=partial(_tiles, result),
        tables=tuple(tables.tables(result)),
        caption=f"Latency percentiles of {calls}.",
        plots=partial(_plots, result),
        measured={"Workload, machine and software": result},
    )


def _tiles(result: BenchResult) -> list[Tile]:
    if result.offline:
        return _offline_tiles(result)
    tiles = [] if result.slo is None else [_slo_tile(result.slo)]
    closed = tables.closed_loop_levels(result)
    levels = closed or tables.open_loop_levels(result)
    best = tables.best_level(levels)
    least = min(levels, key=lambda level: level.load)
    rate = "throughput with" if closed else "answered in time at"
    higher = f"{rate} {tables.load_label(best)}; higher is better"
    tiles.append((tables.rate(best.texts_per_s), "texts/s", higher))
    if least.latency_ms is not None:
        lower = f"median latency with {tables.load_label(least)}; lower is better"
        tiles.append((tables.ms(least.latency_ms.p50), "ms", lower))
    if best.latency_ms is not None:
        lower = f"p99 latency with {tables.load_label(best)}; lower is better"
        tiles.append((tables.ms(best.latency_ms.p99), "ms", lower))
    failed = sum(level.failed for level in result.levels)
    return [*tiles, (f"{failed:,}", "errors", "failed requests in all levels; should be 0")]


def _slo_tile(slo: SloResult) -> Tile:
    which = "largest rate of --rate" if slo.asked else "largest rate"
    caption = f"{which} that meets the SLO; higher is better"
    return (
        ("none", "", caption)
        if slo.rate is None
        else (tables.rate(slo.rate), "requests/s", caption)
    )


def _offline_tiles(result: BenchResult) -> list[Tile]:
    engines = tables.engines(result)
    fastest = max(engines, key=lambda level: level.texts_per_s)
    quickest = min(engines, key=lambda level: level.latency_ms.p50)
    tokens = max(tables.tokenizing(result), key=lambda level: level.texts_per_s)
    best = f"{fastest.stage}, {fastest.batch} texts per call; higher is better"
    quick = f"median latency of {quickest.stage}, {quickest.batch} texts per call"
    return [
        (tables.rate(fastest.texts_per_s), "texts/s", best),
        (tables.ms(quickest.latency_ms.p50), "ms", f"{quick}; lower is better"),
        (tables.rate(tokens.texts_per_s), "texts/s", "tokenizer throughput; higher is better"),
    ]


def _plots(result: BenchResult) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    if result.offline:
        answer = "Token ids to logits, texts/s in this process. Longer is better."
        tokens = "Text to token ids, texts/s in this process. Longer is better."
        engines, tokenizing = tables.engines(result), tables.tokenizing(result)
        return [
            ("Engines", answer, plots.offline(engines, "Throughput of each engine")),
            ("Tokenizer", tokens, plots.offline(tokenizing, "Throughput of the tokenizer")),
        ]
    drawn = []
    if closed := tables.closed_loop_levels(result):
        caption = f"Texts answered per second. Higher is better. {_peak(closed)}"
        drawn.append(("Throughput", caption, plots.throughput(closed)))
        if answered := _answered(closed):
            caption = "Time from sending a request to its complete response. Lower is better."
            drawn.append(("Latency", caption, plots.latencies(answered)))
    if opened := tables.open_loop_levels(result):
        if answered := _answered(opened):
            caption = "Latency counts from the intended send time. Lower is better."
            drawing = plots.latencies(answered, result.slo)
            drawn.append(("Latency against load", caption, drawing))
        caption = "Below the dashed line, the server is overloaded: requests are queued or refused."
        drawn.append(("Throughput against load", caption, plots.throughput(opened)))
    if shown := [level for level in result.levels if level.histogram is not None]:
        sampled = shown[:: 1 + (len(shown) - 1) // MOST_HISTOGRAMS]
        caption = "Number of requests by latency. Further left and narrower is better."
        drawn.append(("Distribution of latencies", caption, plots.histograms(sampled)))
    return drawn


def _answered(levels: Sequence[Level]) -> list[Level]:
    return [level for level in levels if level.latency_ms is not None]


def _peak(levels: Sequence[Level]) -> str:
    best = tables.best_level(levels)
    if best.load == max(level.load for level in levels):
        return f"The peak may be beyond {tables.load_label(best)}."
    return (
        f"From {tables.load_label(best)} on it is within 5 % of the peak: more clients only add"
        " latency."
    )
