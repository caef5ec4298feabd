"""Plots of levels and of comparisons. Shapes: L levels."""

from collections.abc import Callable, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipework.benchmarks.report.tables import load_label
from pipework.benchmarks.results_schema.comparison import (
    ComparisonResult,
    Quantity,
    Ratio,
    RatioVerdict,
)
from pipework.benchmarks.results_schema.level import Histogram, Level
from pipework.benchmarks.results_schema.results import OfflineLevel, SloResult
from pipework.html.svg import GRID, INK, SERIES, STYLE, WIDTH_IN, new_axes, number, svg

ROW_STYLE = STYLE | {"axes.grid.axis": "x"}
SHOWN = dict(zip(("p50", "p90", "p95", "p99"), SERIES, strict=True))
MARGIN = 1.15
COLOURS = {
    RatioVerdict.FASTER: SERIES[1],
    RatioVerdict.SLOWER: SERIES[3],
    RatioVerdict.NO_DIFFERENCE: INK,
}
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)
NARROW_TICKS = (0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.4)
NARROW_RANGE = 1.5


def throughput(levels: Sequence[Level]) -> str:
    """Draw texts/s against the clients of closed loops, or the texts/s sent of open loops."""
    rates_L = [level.texts_per_s for level in levels]
    with rc_context(STYLE):
        figure, axes = new_axes()
        if levels[0].concurrency is not None:
            axes.plot([level.load for level in levels], rates_L, marker="o", color=SERIES[0])
            _clients_axis(axes, levels)
        else:
            sent_L = [level.sent / level.duration_s * _texts_per_request(level) for level in levels]
            most = max(sent_L)
            axes.plot((0, most), (0, most), "--", linewidth=1, color=INK, label="all sent")
            axes.plot(sent_L, rates_L, marker="o", color=SERIES[0], label="answered in time")
            axes.set_xlim(left=0)
            _value_axis(axes, "texts/s sent")
            _legend(axes)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("texts/s")
        return svg(figure, "Throughput against the load")


def _texts_per_request(level: Level) -> float:
    """Return the mean number of texts per request."""
    return level.texts_per_request or level.texts / max(level.requests, 1)


def latencies(levels: Sequence[Level], slo: SloResult | None = None) -> str:
    """Draw latency percentiles against the load, and the limits of an objective.

    Every level must have successful requests. The latency axis is logarithmic, because latencies
    rise by orders of magnitude at overload. Crosses mark levels that missed the objective.
    """
    loads_L = [level.load for level in levels]
    drawn_ms = []
    with rc_context(STYLE):
        figure, axes = new_axes()
        for name, colour in SHOWN.items():
            ms_L = [getattr(level.latency_ms, name) for level in levels]
            axes.plot(loads_L, ms_L, marker="o", markersize=4, color=colour, label=name)
            drawn_ms += ms_L
        if levels[0].concurrency is not None:
            _clients_axis(axes, levels)
        else:
            axes.set_xlim(left=0)
            _value_axis(axes, "requests/s sent")
        if slo is not None:
            drawn_ms += _limits(axes, slo)
        _log_axis(axes, min(drawn_ms) / MARGIN, max(drawn_ms) * MARGIN)
        _legend(axes)
        return svg(figure, "Latency percentiles against the load")


def _limits(axes: Axes, slo: SloResult) -> list[float]:
    """Draw the limits as lines, with crosses at the rates that missed them; return them in ms."""
    missed_L = [trial.rate for trial in slo.trials if not trial.met]
    limits_ms = [limit.most_ms for limit in slo.limits]
    for limit in slo.limits:
        axes.axhline(limit.most_ms, linestyle="--", linewidth=1, color=INK)
        text = f"{limit.statistic} limit"
        left = axes.get_yaxis_transform()  # x as a share of the axes, y in milliseconds
        axes.text(0.01, limit.most_ms, text, transform=left, va="bottom", fontsize=9)
    if missed_L:
        axes.plot(missed_L, [max(limits_ms)] * len(missed_L), "x", color=INK, label="missed")
    return limits_ms


def histograms(levels: Sequence[Level]) -> str:
    """Draw latency histograms, one row per level, with a common logarithmic axis."""
    shown = [(load_label(level), level.histogram) for level in levels if level.histogram]
    with rc_context(ROW_STYLE):
        figure = _figure(0.8 + 0.5 * len(shown))
        rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, histogram) in zip(rows, shown, strict=True):
            _histogram(axes, histogram, name)
        edges = [edge for _, histogram in shown for edge in histogram.edges_ms]
        ticks = round_ticks(min(edges), max(edges))
        rows[-1].set_xlim(min(*ticks, *edges), max(*ticks, *edges))
        _fixed_ticks(rows[-1].xaxis, ticks, _plain)
        rows[-1].set_xlabel("milliseconds (logarithmic)")
        return svg(figure, "Latency distribution of each level")


def _histogram(axes: Axes, histogram: Histogram, name: str) -> None:
    axes.stairs(histogram.counts, histogram.edges_ms, fill=True, color=SERIES[0])
    axes.set_xscale("log")
    axes.set_yticks([])
    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def offline(levels: Sequence[OfflineLevel], description: str) -> str:
    """Draw texts/s of each stage and batch size."""
    stages = list(dict.fromkeys(level.stage for level in levels))
    places_L = range(len(levels))
    rates_L = [level.texts_per_s for level in levels]
    colours_L = [SERIES[stages.index(level.stage) % len(SERIES)] for level in levels]
    with rc_context(ROW_STYLE):
        figure = _figure(1.0 + 0.36 * len(levels))
        axes = figure.subplots()
        bars = axes.barh(places_L, rates_L, height=0.7, color=colours_L)
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates_L], padding=4)
        axes.set_yticks(places_L, [f"{level.stage}, {level.batch} per call" for level in levels])
        axes.invert_yaxis()
        axes.set_xlim(0, MARGIN * max(rates_L))
        _value_axis(axes, "texts/s")
        return svg(figure, description)


def ratio_plot(result: ComparisonResult, quantity: Quantity) -> str:
    """Draw the ratios of a quantity with their intervals; every level must have this quantity.

    The shaded band is the tolerance. The axis is logarithmic, so that 2 and 1/2 are symmetric.
    """
    shown = {
        level.name: ratio
        for level in result.levels
        for ratio in level.ratios
        if ratio.quantity is quantity
    }
    with rc_context(ROW_STYLE):
        figure = _figure(1.0 + 0.36 * len(shown))
        axes = figure.subplots()
        axes.axvspan(1 / (1 + result.tolerance), 1 + result.tolerance, color=GRID, alpha=0.5)
        axes.axvline(1, linewidth=1, color=INK)
        for row, ratio in enumerate(shown.values()):
            colour = COLOURS[ratio.verdict]
            axes.plot((ratio.low, ratio.high), (row, row), color=colour, linewidth=3, alpha=0.5)
            axes.plot(ratio.ratio, row, marker="o", color=colour)
        axes.set_xscale("log")
        low, high, ticks = _range([*shown.values()])
        axes.set_xlim(low, high)
        _fixed_ticks(axes.xaxis, ticks, _plain)
        axes.set_yticks(range(len(shown)), [*shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel(f"{quantity}, relative to the baseline")
        return svg(figure, f"Ratios of {quantity} with their intervals")


def _range(shown: Sequence[Ratio]) -> tuple[float, float, list[float]]:
    """Return the limits of the axis, which include 1, and its ticks."""
    low = min(0.95, *(ratio.low for ratio in shown)) / 1.03
    high = max(1.05, *(ratio.high for ratio in shown)) * 1.03
    fine = high / low < NARROW_RANGE**2
    ticks = [tick for tick in (NARROW_TICKS if fine else TICKS) if low <= tick <= high]
    return low, high, ticks


def round_ticks(low_ms: float, high_ms: float) -> list[float]:
    """Return round values (1, 2, 5, 10, ...) within a range, or around it if it is narrow."""
    rounds = [digit * 10.0**power for power in range(-1, 6) for digit in (1, 2, 5)]
    inside = [tick for tick in rounds if low_ms <= tick <= high_ms]
    if len(inside) > 1:
        return inside[:: 1 + len(inside) // 9]
    below = max(tick for tick in rounds if tick <= low_ms)
    above = min(tick for tick in rounds if tick >= high_ms)
    return [below, above]


def _figure(height_in: float) -> Figure:
    """Return a figure as wide as a page, for plots whose height depends on their rows."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def _value_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(number))


def _clients_axis(axes: Axes, levels: Sequence[Level]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("concurrent clients")
    _fixed_ticks(axes.xaxis, [level.load for level in levels])


def _log_axis(axes: Axes, low_ms: float, high_ms: float) -> None:
    ticks = round_ticks(low_ms, high_ms)
    axes.set_yscale("log")
    axes.set_ylim(min(low_ms, *ticks), max(high_ms, *ticks))
    _fixed_ticks(axes.yaxis, ticks)
    axes.set_ylabel("milliseconds")


def _fixed_ticks(
    axis: Axis, ticks: Sequence[float], write: Callable[[float, int], str] = number
) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(write))
    # A logarithmic axis would label its minor ticks over a narrow range.
    axis.set_minor_locator(NullLocator())


def _plain(tick: float, _position: int) -> str:
    return f"{tick:g}"


def _legend(axes: Axes) -> None:
    # Above the axes, where it covers no data.
    axes.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
