"""Report of a measurement: plots, tables and notes."""

from collections.abc import Sequence
from functools import partial

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.measurement_warnings import notes
from pipework.benchmarks.report.report import Plot, Report
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult


def report(result: BenchResult) -> Report:
    """Return the report of a server, or of the engines in this process."""
    calls = "calls" if result.offline else "successful requests"
    return Report(
        heading=result.model,
        line=f"{result.target} · {tables.workload_line(result)}",
        notes=tuple(notes(result)),
        tables=tuple(tables.tables(result)),
        caption=f"Latency percentiles of {calls}.",
        plots=partial(_plots, result),
    )


def _plots(result: BenchResult) -> list[Plot]:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    drawn = []
    if closed := tables.closed_loop_levels(result):
        caption = "Texts answered per second. Higher is better."
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
    return drawn


def _answered(levels: Sequence[Level]) -> list[Level]:
    return [level for level in levels if level.latency_ms is not None]
