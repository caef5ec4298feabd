"""Plots of levels. Shapes: L levels."""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import SloResult
from pipework.html.svg import INK, SERIES, STYLE, new_axes, number, svg

SHOWN = dict(zip(("p50", "p90", "p95", "p99"), SERIES, strict=True))
MARGIN = 1.15


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


def round_ticks(low_ms: float, high_ms: float) -> list[float]:
    """Return round values (1, 2, 5, 10, ...) within a range, or around it if it is narrow."""
    rounds = [digit * 10.0**power for power in range(-1, 6) for digit in (1, 2, 5)]
    inside = [tick for tick in rounds if low_ms <= tick <= high_ms]
    if len(inside) > 1:
        return inside[:: 1 + len(inside) // 9]
    below = max(tick for tick in rounds if tick <= low_ms)
    above = min(tick for tick in rounds if tick >= high_ms)
    return [below, above]


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


def _fixed_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(number))
    # A logarithmic axis would label its minor ticks over a narrow range.
    axis.set_minor_locator(NullLocator())


def _legend(axes: Axes) -> None:
    # Above the axes, where it covers no data.
    axes.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
