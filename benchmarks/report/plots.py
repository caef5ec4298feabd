"""Plots of closed-loop and offline levels.

Shapes: L levels.
"""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipework.benchmarks.report.tables import load_label
from pipework.benchmarks.results_schema.level import Histogram, Level
from pipework.benchmarks.results_schema.results import OfflineLevel
from pipework.html.svg import SERIES, STYLE, WIDTH_IN, new_axes, number, svg


def throughput(levels: Sequence[Level]) -> str:
    """Draw texts/s against the number of clients."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        clients_L = [level.load for level in levels]
        axes.plot(clients_L, [level.texts_per_s for level in levels], marker="o", color=SERIES[0])
        _clients_axis(axes, clients_L)
        axes.set_ylabel("texts/s")
        return svg(figure, "Throughput against the number of clients")


def latencies(levels: Sequence[Level]) -> str:
    """Draw latency percentiles by number of clients; all levels need successful requests."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        clients_L = [level.load for level in levels]
        for name, colour in zip(("p50", "p90", "p95", "p99"), SERIES, strict=True):
            axes.plot(clients_L, _ms(levels, name), marker="o", color=colour, label=name)
        _clients_axis(axes, clients_L)
        _latency_axis(axes)
        return svg(figure, "Latency percentiles against the number of clients")


def latency_against_throughput(levels: Sequence[Level]) -> str:
    """Draw p50 and p99 against texts/s; every level must have successful requests."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        rates_L = [level.texts_per_s for level in levels]
        for name, colour in (("p50", SERIES[0]), ("p99", SERIES[3])):
            axes.plot(rates_L, _ms(levels, name), marker="o", color=colour, label=name)
        for level, rate, ms in zip(levels, rates_L, _ms(levels, "p99"), strict=True):
            text, place = f"{level.load:g}", (-6, 5)
            axes.annotate(text, (rate, ms), place, textcoords="offset points", ha="right")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
        axes.set_xlabel("texts/s")
        _latency_axis(axes)
        return svg(figure, "Latency against throughput")


def histograms(levels: Sequence[Level]) -> str:
    """Draw latency histograms, one row per level, with a common logarithmic axis."""
    shown = [(load_label(level), level.histogram) for level in levels if level.histogram]
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN, 0.8 + 0.5 * len(shown)), layout="constrained")
        rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, histogram) in zip(rows, shown, strict=True):
            _histogram(axes, histogram, name)
        edges = [edge for _, histogram in shown for edge in histogram.edges_ms]
        ticks = round_ticks(min(edges), max(edges))
        rows[-1].set_xlim(min(*ticks, *edges), max(*ticks, *edges))
        rows[-1].xaxis.set_major_locator(FixedLocator(ticks))
        rows[-1].xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
        rows[-1].xaxis.set_minor_locator(NullLocator())
        rows[-1].set_xlabel("milliseconds (logarithmic)")
        return svg(figure, "Latency distribution of each level")


def offline(levels: Sequence[OfflineLevel], description: str) -> str:
    """Draw texts/s of each stage and batch size."""
    stages = list(dict.fromkeys(level.stage for level in levels))
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.36 * len(levels)), layout="constrained")
        axes = figure.subplots()
        places_L = range(len(levels))
        colours_L = [SERIES[stages.index(level.stage) % len(SERIES)] for level in levels]
        bars = axes.barh(
            places_L, [level.texts_per_s for level in levels], height=0.7, color=colours_L
        )
        axes.bar_label(bars, [f"{level.texts_per_s:,.0f}" for level in levels], padding=4)
        axes.set_yticks(places_L, [f"{level.stage}, {level.batch} per call" for level in levels])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(level.texts_per_s for level in levels))
        axes.set_xlabel("texts/s")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(number))
        return svg(figure, description)


def _clients_axis(axes: Axes, clients_L: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("concurrent clients")
    axes.xaxis.set_major_locator(FixedLocator(clients_L))
    axes.xaxis.set_major_formatter(FuncFormatter(number))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)


def _latency_axis(axes: Axes) -> None:
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)


def _ms(levels: Sequence[Level], name: str) -> list[float]:
    return [getattr(level.latency_ms, name) for level in levels]


def _histogram(axes: Axes, histogram: Histogram, name: str) -> None:
    axes.stairs(histogram.counts, histogram.edges_ms, fill=True, color=SERIES[0])
    axes.set_xscale("log")
    axes.set_yticks([])
    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def round_ticks(low_ms: float, high_ms: float) -> list[float]:
    """Return round values (1, 2, 5, 10, ...) within a range, or around it if it is narrow."""
    rounds = [digit * 10.0**power for power in range(-1, 6) for digit in (1, 2, 5)]
    inside = [tick for tick in rounds if low_ms <= tick <= high_ms]
    if len(inside) > 1:
        return inside[:: 1 + len(inside) // 9]
    below = max(tick for tick in rounds if tick <= low_ms)
    above = min(tick for tick in rounds if tick >= high_ms)
    return [below, above]
