"""Plots of a server: mean stage times of a request, CPU and memory use.

Shapes: L levels.
"""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipework.benchmarks.report.tables import load_label, stages
from pipework.benchmarks.results_schema.level import Level
from pipework.html.svg import INK, SERIES, STYLE, WIDTH_IN, number, svg

ROW_IN = 0.34
OTHER = "outside"
LEGEND_COLUMNS = 3


def stage_breakdown(levels: Sequence[Level]) -> str:
    """Draw the mean stage times as one stacked bar per level; every level must have stage times.

    The stage "outside" is the rest of the mean latency: network, HTTP and the load generator.
    """
    names, places_L = stages(levels), range(len(levels))
    rows = -(-(len(names) + 1) // LEGEND_COLUMNS)
    height = 0.9 + 0.22 * rows + ROW_IN * len(levels)
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        axes = figure.subplots()
        left_L = [0.0] * len(levels)
        for index, name in enumerate([*names, OTHER]):
            widths_L = [_stage(level, name) for level in levels]
            faded = index >= len(SERIES)
            colour = INK if name == OTHER else SERIES[index % len(SERIES)]
            axes.barh(
                places_L, widths_L, left=left_L, height=0.7, color=colour, label=name,
                alpha=0.35 if name == OTHER else 0.55 if faded else 1,
            )  # fmt: skip
            left_L = [left + width for left, width in zip(left_L, widths_L, strict=True)]
        axes.set_yticks(places_L, [load_label(level) for level in levels])
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
        axes.set_xlabel("milliseconds per request (mean)")
        axes.legend(ncols=LEGEND_COLUMNS, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
        return svg(figure, "Mean time of a request by stage")


def _stage(level: Level, name: str) -> float:
    if name != OTHER:
        return level.stages_ms.get(name, 0.0)
    waited = 0.0 if level.latency_ms is None else level.latency_ms.mean
    return max(0.0, waited - sum(level.stages_ms.values()))


def resource_use(levels: Sequence[Level]) -> str:
    """Draw CPU cores and memory used by the server, one bar per level."""
    used = [level.server for level in levels if level.server is not None]
    places_L = range(len(levels))
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN, 1.0 + ROW_IN * len(levels)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        drawn = (
            (left, [usage.cores for usage in used], "{:.2f}", "CPU cores used", SERIES[0]),
            (right, [usage.peak_mib for usage in used], "{:,.0f}", "peak MiB", SERIES[1]),
        )
        for axes, values_L, form, label, colour in drawn:
            bars = axes.barh(places_L, values_L, height=0.7, color=colour)
            axes.bar_label(bars, [form.format(value) for value in values_L], padding=4)
            axes.set_xlim(0, 1.35 * max(*values_L, 1e-9))
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_major_formatter(FuncFormatter(number))
            axes.set_xlabel(label)
        left.set_yticks(places_L, [load_label(level) for level in levels])
        left.invert_yaxis()
        return svg(figure, "CPU cores and memory used by the server")
