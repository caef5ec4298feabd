"""The plots of a comparison: ratios with their intervals, level by level."""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipework.benchmarks.results_schema.comparison import ComparisonResult, Quantity, Ratio, Verdict
from pipework.html.svg import GRID, INK, SERIES, STYLE, WIDTH_IN, svg

COLOURS = {
    Verdict.FASTER: SERIES[1],
    Verdict.SLOWER: SERIES[3],
    Verdict.NO_DIFFERENCE: INK,
    Verdict.UNKNOWN: INK,
}
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10, 20, 50, 100)
CLOSE = (0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.4)
NARROW = 1.5


def ratios(result: ComparisonResult, what: Quantity) -> str:
    """Draw the ratios of a quantity with their intervals; every level has one of it.

    The shaded band is the tolerance. The axis is logarithmic: twice and half are equally far.
    """
    names = [level.name for level in result.levels for one in level.ratios if one.quantity is what]
    found = [one for level in result.levels for one in level.ratios if one.quantity is what]
    with rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.36 * len(found)), layout="constrained")
        axes = figure.subplots()
        axes.axvspan(1 / (1 + result.tolerance), 1 + result.tolerance, color=GRID, alpha=0.5)
        axes.axvline(1, linewidth=1, color=INK)
        for place, one in enumerate(found):
            colour = COLOURS[one.verdict]
            if one.low is not None and one.high is not None:
                axes.plot((one.low, one.high), (place, place), color=colour, linewidth=3, alpha=0.5)
            axes.plot(one.ratio, place, marker="o", color=colour)
        axes.set_xscale("log")
        low, high, ticks = _range(found)
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(found)), names)
        axes.set_ylim(len(found) - 0.5, -0.5)
        axes.set_xlabel(f"{what}, times as before")
        return svg(figure, f"Ratios of {what} with their intervals")


def _range(found: Sequence[Ratio]) -> tuple[float, float, list[float]]:
    """Return the ends of the axis, with 1 inside, and its ticks."""
    ends = [end for one in found for end in (one.low, one.high, one.ratio) if end is not None]
    low, high = min(*ends, 0.95) / 1.03, max(*ends, 1.05) * 1.03
    fine = high / low < NARROW**2
    ticks = [tick for tick in (CLOSE if fine else TICKS) if low <= tick <= high]
    return low, high, ticks
