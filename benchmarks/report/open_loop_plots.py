"""Plots of open-loop levels: latency and throughput against the request rate.

Shapes: L levels.
"""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipework.benchmarks.report.plots import round_ticks
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.slo import SloResult
from pipework.html.svg import INK, SERIES, STYLE, new_axes, number, svg

SHOWN = (("p50", SERIES[0]), ("p95", SERIES[1]), ("p99", SERIES[3]))
MARGIN = 1.15


def latencies(levels: Sequence[Level], slo: SloResult | None) -> str:
    """Draw percentiles with their intervals against the rate, and the limits of an objective.

    Every level must have successful requests. The latency axis is logarithmic, because latencies
    rise by orders of magnitude at overload. Crosses mark levels that missed the objective.
    """
    with rc_context(STYLE):
        figure, axes = new_axes()
        for name, colour in SHOWN:
            _percentile(axes, levels, name, colour)
        limits_ms = [] if slo is None else _limits(axes, slo)
        _rate_axis(axes)
        _log_axis(axes, levels, limits_ms)
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
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
        _rate_axis(axes)
        axes.set_xlabel("texts/s sent")
        axes.set_ylabel("texts/s")
        axes.set_ylim(bottom=0)
        axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
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


def _rate_axis(axes: Axes) -> None:
    axes.set_xlim(left=0)
    axes.set_xlabel("requests/s sent")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(number))


def _log_axis(axes: Axes, levels: Sequence[Level], limits_ms: Sequence[float]) -> None:
    drawn = [value for name, _ in SHOWN for value in _ms(levels, name)] + list(limits_ms)
    low, high = min(drawn) / MARGIN, max(drawn) * MARGIN
    ticks = round_ticks(low, high)
    axes.set_yscale("log")
    axes.set_ylim(min(low, *ticks), max(high, *ticks))
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(number))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("milliseconds (logarithmic)")


def _ms(levels: Sequence[Level], name: str) -> list[float]:
    return [getattr(level.latency_ms, name) for level in levels]
