"""Plots of levels and of comparisons. Shapes: L levels."""

from collections.abc import Callable, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipework.benchmarks.report.tables import load_label, stages
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
# Percentiles drawn against the rate; p90 would overlap with p95.
SHOWN = (("p50", SERIES[0]), ("p95", SERIES[1]), ("p99", SERIES[3]))
MARGIN = 1.15
ROW_IN = 0.34
OTHER = "outside"
LEGEND_COLUMNS = 3
COLOURS = {
    RatioVerdict.FASTER: SERIES[1],
    RatioVerdict.SLOWER: SERIES[3],
    RatioVerdict.NO_DIFFERENCE: INK,
    RatioVerdict.UNKNOWN: INK,
}
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)
NARROW_TICKS = (0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.4)
NARROW_RANGE = 1.5


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
        _value_axis(axes, "texts/s")
        _latency_axis(axes)
        return svg(figure, "Latency against throughput")


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


def offline(levels: Sequence[OfflineLevel], description: str) -> str:
    """Draw texts/s of each stage and batch size."""
    stages = list(dict.fromkeys(level.stage for level in levels))
    with rc_context(ROW_STYLE):
        figure = _figure(1.0 + 0.36 * len(levels))
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
        _value_axis(axes, "texts/s")
        return svg(figure, description)


def _figure(height_in: float) -> Figure:
    """Return a figure as wide as a page, for plots whose height depends on their rows."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def _value_axis(axes: Axes, label: str, *, ticks: int = 5) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(number))


def _fixed_ticks(
    axis: Axis, ticks: Sequence[float], write: Callable[[float, int], str] = number
) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(write))
    # A logarithmic axis would label its minor ticks over a narrow range.
    axis.set_minor_locator(NullLocator())


def _plain(tick: float, _position: int) -> str:
    return f"{tick:g}"


def _legend(axes: Axes, columns: int) -> None:
    # Above the axes, where it covers no data.
    axes.legend(ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)


def _clients_axis(axes: Axes, clients_L: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("concurrent clients")
    _fixed_ticks(axes.xaxis, clients_L)
    axes.set_ylim(bottom=0)


def _latency_axis(axes: Axes) -> None:
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0)
    _legend(axes, 4)


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


def latencies_by_rate(levels: Sequence[Level], slo: SloResult | None) -> str:
    """Draw percentiles with their intervals against the rate, and the limits of an objective.

    Every level must have successful requests. The latency axis is logarithmic, because latencies
    rise by orders of magnitude at overload. Crosses mark levels that missed the objective.
    """
    with rc_context(STYLE):
        figure, axes = new_axes()
        for name, colour in SHOWN:
            _percentile(axes, levels, name, colour)
        limits_ms = [] if slo is None else _limits(axes, slo)
        axes.set_xlim(left=0)
        _value_axis(axes, "requests/s sent")
        _log_axis(axes, levels, limits_ms)
        _legend(axes, 4)
        return svg(figure, "Latency percentiles against the request rate")


def goodput(levels: Sequence[Level]) -> str:
    """Draw texts/s answered in time against texts/s sent; the dashed line marks equality."""
    with rc_context(STYLE):
        figure, axes = new_axes()
        offered_L = [level.sent / level.duration_s * _texts_per_request(level) for level in levels]
        goodput_L = [level.goodput for level in levels]
        most = max(offered_L)
        axes.plot((0, most), (0, most), linestyle="--", linewidth=1, color=INK, label="all sent")
        axes.plot(offered_L, goodput_L, marker="o", color=SERIES[0], label="answered in time")
        axes.set_xlim(left=0)
        _value_axis(axes, "texts/s sent")
        axes.set_ylabel("texts/s")
        axes.set_ylim(bottom=0)
        _legend(axes, 2)
        return svg(figure, "Texts answered in time against texts sent")


def _texts_per_request(level: Level) -> float:
    """Return the mean number of texts per request."""
    return level.texts_per_request or level.texts / max(level.requests, 1)


def _percentile(axes: Axes, levels: Sequence[Level], name: str, colour: str) -> None:
    rates_L = [level.load for level in levels]
    axes.plot(rates_L, _ms(levels, name), marker="o", markersize=4, color=colour, label=name)
    known = [level for level in levels if name in level.interval_ms]
    if known:
        low_L, high_L = zip(*(level.interval_ms[name] for level in known), strict=True)
        rates = [level.load for level in known]
        axes.vlines(rates, low_L, high_L, color=colour, linewidth=4, alpha=0.35)


def _limits(axes: Axes, slo: SloResult) -> list[float]:
    """Draw the limits as lines, with crosses at the rates that missed them; return them in ms."""
    missed_L = [trial.rate for trial in slo.trials if not trial.met]
    for limit in slo.limits:
        axes.axhline(limit.most_ms, linestyle="--", linewidth=1, color=INK)
        place = (0, limit.most_ms)
        text = f"{limit.statistic} limit"
        axes.annotate(
            text, place, (2, 4), xycoords=("axes fraction", "data"), textcoords="offset points",
            ha="left", fontsize=9,
        )  # fmt: skip
    top = max(limit.most_ms for limit in slo.limits)
    if missed_L:
        axes.plot(missed_L, [top] * len(missed_L), "x", color=INK, label="missed")
    return [limit.most_ms for limit in slo.limits]


def _log_axis(axes: Axes, levels: Sequence[Level], limits_ms: Sequence[float]) -> None:
    drawn = [value for name, _ in SHOWN for value in _ms(levels, name)] + list(limits_ms)
    low, high = min(drawn) / MARGIN, max(drawn) * MARGIN
    ticks = round_ticks(low, high)
    axes.set_yscale("log")
    axes.set_ylim(min(low, *ticks), max(high, *ticks))
    _fixed_ticks(axes.yaxis, ticks)
    axes.set_ylabel("milliseconds (logarithmic)")


def stage_breakdown(levels: Sequence[Level]) -> str:
    """Draw the mean stage times as one stacked bar per level; every level must have stage times.

    The stage "outside" is the rest of the mean latency: network, HTTP and the load generator.
    """
    names, places_L = stages(levels), range(len(levels))
    rows = -(-(len(names) + 1) // LEGEND_COLUMNS)
    height = 0.9 + 0.22 * rows + ROW_IN * len(levels)
    with rc_context(ROW_STYLE):
        figure = _figure(height)
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
        _value_axis(axes, "milliseconds per request (mean)")
        _legend(axes, LEGEND_COLUMNS)
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
    with rc_context(ROW_STYLE):
        figure = _figure(1.0 + ROW_IN * len(levels))
        left, right = figure.subplots(1, 2, sharey=True)
        drawn = (
            (left, [usage.cores for usage in used], "{:.2f}", "CPU cores used", SERIES[0]),
            (right, [usage.peak_mib for usage in used], "{:,.0f}", "peak MiB", SERIES[1]),
        )
        for axes, values_L, form, label, colour in drawn:
            bars = axes.barh(places_L, values_L, height=0.7, color=colour)
            axes.bar_label(bars, [form.format(value) for value in values_L], padding=4)
            axes.set_xlim(0, 1.35 * max(*values_L, 1e-9))
            _value_axis(axes, label, ticks=3)
        left.set_yticks(places_L, [load_label(level) for level in levels])
        left.invert_yaxis()
        return svg(figure, "CPU cores and memory used by the server")


def ratio_plot(result: ComparisonResult, quantity: Quantity) -> str:
    """Draw the ratios of a quantity with their intervals; every level must have this quantity.

    The shaded band is the tolerance. The axis is logarithmic, so that 2 and 1/2 are symmetric.
    """
    named = [
        (level.name, ratio)
        for level in result.levels
        for ratio in level.ratios
        if ratio.quantity is quantity
    ]
    shown = [ratio for _, ratio in named]
    with rc_context(ROW_STYLE):
        figure = _figure(1.0 + 0.36 * len(shown))
        axes = figure.subplots()
        axes.axvspan(1 / (1 + result.tolerance), 1 + result.tolerance, color=GRID, alpha=0.5)
        axes.axvline(1, linewidth=1, color=INK)
        for row, ratio in enumerate(shown):
            colour = COLOURS[ratio.verdict]
            if ratio.low is not None and ratio.high is not None:
                axes.plot((ratio.low, ratio.high), (row, row), color=colour, linewidth=3, alpha=0.5)
            axes.plot(ratio.ratio, row, marker="o", color=colour)
        axes.set_xscale("log")
        low, high, ticks = _range(shown)
        axes.set_xlim(low, high)
        _fixed_ticks(axes.xaxis, ticks, _plain)
        axes.set_yticks(range(len(shown)), [name for name, _ in named])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel(f"{quantity}, relative to the baseline")
        return svg(figure, f"Ratios of {quantity} with their intervals")


def _range(shown: Sequence[Ratio]) -> tuple[float, float, list[float]]:
    """Return the limits of the axis, which include 1, and its ticks."""
    ends = [
        end for ratio in shown for end in (ratio.low, ratio.high, ratio.ratio) if end is not None
    ]
    low, high = min(*ends, 0.95) / 1.03, max(*ends, 1.05) * 1.03
    fine = high / low < NARROW_RANGE**2
    ticks = [tick for tick in (NARROW_TICKS if fine else TICKS) if low <= tick <= high]
    return low, high, ticks
