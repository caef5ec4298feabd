"""Draw a stored roofline, bulk jobs, replicas under load or front processes as an HTML page.

`python -m pipework.benchmarks.studies.result_page RESULT PAGE`
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipework.benchmarks.report.bench_page import provenance_facts
from pipework.benchmarks.studies.records.engine_results import (
    HEAD,
    Roof,
    RoofedEngine,
    RooflineResult,
    roofline_rows,
)
from pipework.benchmarks.studies.records.experiment_results import (
    NO_ENGINE,
    SCALING_HEAD,
    WORKERS_HEAD,
    ScalingResult,
    WorkersResult,
    possible_rate,
    scaling_rows,
    workers_rows,
)
from pipework.benchmarks.studies.records.serving_results import BULK_HEAD, BulkResult, bulk_rows
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.script import report_errors
from pipework.errors import DataError
from pipework.html import page as frame
from pipework.html.svg import INK, SERIES, STYLE, new_axes, number, svg
from pipework.run_folder.files import check_writable, write_atomically

PLOT_LEGEND = (
    "A roof is the peak rate of large matrix products in that runtime and precision; left of its"
    " edge the memory bandwidth is the limit. A filled mark is an engine, the hollow mark above it"
    " a graph of only its matrix products, in the same calls."
)
COUNTING_RULES = (
    "Operations are the multiplications and additions of the matrix products. Bytes are those that"
    " the products read and write without caches, so the true operations per byte are at least the"
    " plotted value."
)


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a stored result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.result_page", description=__doc__
    )
    parser.add_argument("result", type=Path, help="the .json file of the result")
    parser.add_argument("page", type=Path, help="the .html file to write")
    options = parser.parse_args(arguments)
    result = read_stored(options.result)
    if not isinstance(result, DrawnResult):
        expected = "a roofline, bulk jobs, replicas or front processes"
        message = f"{options.result}: expected {expected}, found {result.kind}"
        raise DataError(message, f"measure a roofline: {MEASURE}")
    check_writable(options.page)
    write_atomically(options.page, page(result).encode())
    return 0


MEASURE = "python -m pipework.benchmarks.studies.roofline RUN NAME --out FILE"
DrawnResult = RooflineResult | BulkResult | ScalingResult | WorkersResult


def page(result: DrawnResult) -> str:
    """Return the HTML page of a result; see `roofline_page`."""
    match result:
        case RooflineResult():
            return roofline_page(result)
        case BulkResult():
            return bulk_page(result)
        case ScalingResult():
            return scaling_page(result)
        case WorkersResult():
            return workers_page(result)


def roofline_page(result: RooflineResult) -> str:
    """Return the page of a roofline: key figures, the roofline, its table, machine and versions.

    Raises:
        DataError: the result predates the measurement of roofs.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if not result.roofs or result.bandwidth_gb_s is None:
        message = f"the stored roofline of {result.model} has no roofs and no bandwidth"
        raise DataError(message, f"measure again: {MEASURE}")
    created_at = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    calls = f"calls of {result.batch_tokens:,} tokens"
    rows = (frame.cells(row[1:]) for row in roofline_rows(result))
    workload = {"source": result.texts, "per call": f"{result.batch_tokens:,} tokens"}
    plot = ("Engines and roofs", PLOT_LEGEND, roofline_plot(result))
    table = frame.table(HEAD[1:], rows)
    parts = (
        frame.header(result.model, f"{result.texts} · {calls} · {created_at}"),
        f'<p class="verdict">{escape(limits(result))}</p>',
        frame.tiles(_tiles(result)),
        frame.section("Roofline", f'<div class="whole">{frame.plots([plot])}</div>'),
        frame.section("All figures", f'<p class="quiet">{COUNTING_RULES}</p>{table}'),
        frame.section(
            "Workload and machine",
            provenance_facts({"Workload": workload}, result.provenance, result.command),
        ),
    )
    return frame.render_page(f"{result.model}: roofline", parts)


def limits(result: RooflineResult) -> str:
    """Return a sentence that names the engines limited by memory and those limited by compute."""
    bound = [engine.engine for engine in result.engines if _memory_bound(result, engine)]
    if not bound:
        return "All engines are compute-bound: memory bandwidth does not limit them."
    if len(bound) == len(result.engines):
        return "All engines may be memory-bound: they are below the slope of the memory roof."
    return f"{', '.join(bound)} may be memory-bound; the other engines are compute-bound."


def _memory_bound(result: RooflineResult, engine: RoofedEngine) -> bool:
    roof = next(roof.gflops for roof in result.roofs if roof.name == engine.roof)
    return (result.attainable(engine) or 0.0) < roof


def _tiles(result: RooflineResult) -> list[tuple[str, str, str]]:
    fastest = result.engines[0]
    attainable = result.attainable(fastest) or 0.0
    share = f"{fastest.gflops / attainable:.0%}"
    return [
        (share, "of its roof", f"{fastest.engine}, the fastest; higher is better"),
        (f"{fastest.share:.0%}", "of matmul-only", f"{fastest.engine}; higher is better"),
        (f"{attainable:,.0f}", "GFLOP/s", f"attainable under the roof {fastest.roof}"),
        (f"{result.bandwidth_gb_s:,.1f}", "GB/s", "memory copy, reads and writes counted"),
    ]


# After Williams et al. 2009, https://doi.org/10.1145/1498765.1498785.

SIZE_IN = (8.6, 5.2)
LINES = ("-", "--", ":", "-.")  # line styles of the roofs that share a colour
MARKERS = "osD^vPX*"
MARGIN = 2.0  # factor between the data and each end of the axis
MOST_TICKS = 10
LEAST_SPAN = 30.0  # ratio of the ends of an axis


def roofline_plot(result: RooflineResult) -> str:
    """Return an SVG of the roofs and, below them, each engine and its matmul-only graph.

    The result must have roofs, a bandwidth, and the operations per byte of each engine.
    """
    bandwidth = result.bandwidth_gb_s or 0.0
    with rc_context(STYLE | {"axes.grid.axis": "both"}):
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        axes = figure.subplots()
        low, high = _intensities(result, bandwidth)
        for index, roof in enumerate(result.roofs):
            _roof(axes, roof, _style(result, index), (bandwidth, low, high))
        _memory(axes, result, bandwidth, low)
        for index, engine in enumerate(result.engines):
            _engine(axes, engine, MARKERS[index % len(MARKERS)], _colour(result, engine))
        axes.set_xlim(low, high)
        _axes(axes)
        figure.legend(ncols=2, loc="outside lower center", fontsize=10)
        return svg(figure, "Roofline: operations per second over operations per byte")


def _style(result: RooflineResult, index: int) -> tuple[str, str]:
    """Return the colour of a roof, one per precision, and its line style."""
    precisions = [roof.name.partition(" ")[2] for roof in result.roofs]
    distinct = list(dict.fromkeys(precisions))
    repeats = precisions[:index].count(precisions[index])
    colour = SERIES[distinct.index(precisions[index]) % len(SERIES)]
    return colour, LINES[repeats % len(LINES)]


def _colour(result: RooflineResult, engine: RoofedEngine) -> str:
    names = [roof.name for roof in result.roofs]
    return _style(result, names.index(engine.roof or ""))[0]


def _roof(
    axes: Axes, roof: Roof, style: tuple[str, str], extent: tuple[float, float, float]
) -> None:
    """Draw a compute roof from its ridge to the right, with its height as label."""
    bandwidth, low, high = extent
    colour, line = style
    ridge = max(low, roof.gflops / bandwidth)
    label = f"{roof.name}: {roof.gflops:,.0f} GFLOP/s"
    axes.plot((ridge, high), (roof.gflops,) * 2, color=colour, linestyle=line, label=label)


def _memory(axes: Axes, result: RooflineResult, bandwidth: float, low: float) -> None:
    most = max(roof.gflops for roof in result.roofs)
    label = f"memory: {bandwidth:,.1f} GB/s"
    ends = (low, most / bandwidth)
    axes.plot(ends, [bandwidth * end for end in ends], color=INK, label=label)


def _engine(axes: Axes, engine: RoofedEngine, marker: str, colour: str) -> None:
    """Draw an engine as a filled mark and its matmul-only graph as a hollow mark above it."""
    x = engine.flop_per_byte or 0.0
    axes.plot((x, x), (engine.gflops, engine.roof_gflops), color=colour, linewidth=1)
    axes.plot(x, engine.roof_gflops, marker=marker, color=colour, markerfacecolor="none")
    axes.plot(x, engine.gflops, marker=marker, color=colour, linestyle="", label=engine.engine)


def _intensities(result: RooflineResult, bandwidth: float) -> tuple[float, float]:
    """Return the ends of the x axis, so that all ridges and engines are inside."""
    values = [engine.flop_per_byte or 1.0 for engine in result.engines]
    values += [roof.gflops / bandwidth for roof in result.roofs]
    low, high = min(values) / MARGIN, max(values) * MARGIN
    return low / max(1.0, LEAST_SPAN * low / high), high


def _axes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.1)
    for axis, ends in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(FixedLocator(_ticks(*ends)))
        axis.set_major_formatter(FuncFormatter(number))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("FLOP per byte read or written by matrix products")
    axes.set_ylabel("GFLOP/s")


def _ticks(low: float, high: float) -> Sequence[float]:
    candidates = [digit * 10.0**power for power in range(-3, 8) for digit in (1, 2, 5)]
    ticks = [tick for tick in candidates if low <= tick <= high]
    return ticks if len(ticks) <= MOST_TICKS else [tick for tick in ticks if f"{tick:e}"[0] == "1"]


TABLES: dict[type, tuple[Sequence[str], Callable[[Any], Iterable[Sequence[str]]]]] = {
    BulkResult: (BULK_HEAD, bulk_rows),
    ScalingResult: (SCALING_HEAD, scaling_rows),
    WorkersResult: (WORKERS_HEAD, workers_rows),
}


def bulk_page(result: BulkResult) -> str:
    """Return the page of bulk jobs: memory and rate over the finished rows, and the table."""
    memory, rate = "Resident memory of the uninterrupted job", "Mean rate since its start"
    samples = [sample for sample in result.samples if sample.seconds]
    rows, mib = ([getattr(sample, name) for sample in samples] for name in ("rows", "mib"))
    rates = [sample.rows / sample.seconds for sample in samples]
    plots = (
        ("Memory", memory, _line_plot(("finished rows", "MiB"), rows, {"memory": mib})),
        ("Rate", rate, _line_plot(("finished rows", "rows/s"), rows, {"rate": rates})),
    )
    inputs = {
        "files": f"{result.files}",
        "row groups": f"{result.row_groups:,}",
        "processors that other programs used, by round": f"{result.rates.other_cores}",
    }
    return _study_page(result, f"bulk jobs with {result.engine}", plots, inputs)


def _study_page(
    result: BulkResult | ScalingResult | WorkersResult,
    title: str,
    plots: Sequence[tuple[str, str, str]],
    inputs: Mapping[str, str],
) -> str:
    """Return a page with plots, the table of the result, its inputs and the machine."""
    head, rows = TABLES[type(result)]
    cells = (frame.cells(row[1:]) for row in rows(result))
    parts = (
        frame.header(result.model, title),
        frame.plots(plots),
        frame.section("All figures", frame.table(head[1:], cells)),
        frame.section(
            "Input and machine",
            provenance_facts({"Input": inputs}, result.provenance, result.command),
        ),
    )
    return frame.render_page(f"{result.model}: {title}", parts)


def scaling_page(result: ScalingResult) -> str:
    """Return the page of replicas under load: load, query and replicas over time, and the table."""
    samples, target = result.samples, f"the target per replica is {result.limits.target:g} s"
    value = f"Value of the scaling query in Prometheus, in seconds of queued work; {target}"
    lines: list[tuple[str, str, str, Sequence[float]]] = [
        ("Load", "Clients that send", "clients", [sample.clients for sample in samples]),
        ("Query", value, "seconds of work", [sample.value for sample in samples]),
        ("Replicas", "By the formula of Kubernetes", "replicas", result.replicas),
    ]
    seconds = [sample.seconds for sample in samples]
    plots = [
        (name, note, _line_plot(("seconds", unit), seconds, {unit: y}, drawstyle="steps-post"))
        for name, note, unit, y in lines
    ]
    inputs = {
        "query": result.query,
        "texts per request": f"{result.texts_per_request}",
        **{name.replace("_", " "): f"{limit:g}" for name, limit in result.limits},
    }
    return _study_page(result, "replicas under load", plots, inputs)


def workers_page(result: WorkersResult) -> str:
    """Return the page of front processes: requests/s by their number."""
    note = "0: one process. CPU times: with a processor for each process"
    plots = []
    for load in result.loads:
        levels = [level for level in load.levels if level.engines <= 1]
        lines = {"measured": [median(level.requests_per_s) for level in levels]}
        if load.engine == NO_ENGINE:  # an engine has threads on several processors
            lines["allowed by CPU times"] = list(map(possible_rate, levels))
        fronts, texts = [level.fronts for level in levels], load.texts_per_request
        plot = _line_plot(("front processes", "requests/s"), fronts, lines, marker="o")
        plots.append((f"Engine: {load.engine}; texts per request: {texts}", note, plot))
    return _study_page(result, "front processes", plots, {})


def _line_plot(
    labels: tuple[str, str], x: Sequence[float], lines: Mapping[str, Sequence[float]], **style: str
) -> str:
    """Return a plot of lines by name, in the order of the series; labels are those of x and y."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        for colour, (name, y) in zip(SERIES, lines.items(), strict=False):
            axes.plot(x, y, color=colour, label=name, clip_on=False, **style)  # type: ignore[arg-type]
        axes.set_ylim(bottom=0)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
        if len(lines) > 1:
            axes.legend()
        return svg(figure, f"{labels[1]} by {labels[0]}")


if __name__ == "__main__":
    sys.exit(main())
