"""Plots of a comparison: ratios with their confidence intervals, level by level."""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipework.benchmarks.results_schema.comparison import (
    ComparisonResult,
    Quantity,
    Ratio,
    RatioVerdict,
)
from pipework.html.svg import GRID, INK, SERIES, STYLE, WIDTH_IN, svg

COLOURS = {
    RatioVerdict.FASTER: SERIES[1],
    RatioVerdict.SLOWER: SERIES[3],
    RatioVerdict.NO_DIFFERENCE: INK,
    RatioVerdict.UNKNOWN: INK,
}
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)
NARROW_TICKS = (0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.4)
NARROW_RANGE = 1.5


def ratio_plot(result: ComparisonResult, quantity: Quantity) -> str:
    """Draw the ratios of a quantity with their intervals; every level must have this quantity.

    The shaded band is the tolerance. The axis is logarithmic, so that 2 and 1/2 are symmetric.
    """
    names = [
        level.name
        for level in result.levels
        for ratio in level.ratios
        if ratio.quantity is quantity
    ]
    shown = [
        ratio for level in result.levels for ratio in level.ratios if ratio.quantity is quantity
    ]
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.36 * len(shown)), layout="constrained")
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
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(shown)), names)
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
