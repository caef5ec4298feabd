"""The roofline: operations a second against operations a byte, both logarithmic.

After Williams et al. 2009, https://doi.org/10.1145/1498765.1498785.
"""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipework.benchmarks.studies.roofline_results import Roof, RoofedEngine, RooflineResult
from pipework.html.svg import INK, SERIES, STYLE, number, svg

SIZE_IN = (8.6, 5.2)
LINES = ("-", "--", ":", "-.")  # as many roofs of a colour
MARKERS = "osD^vPX*"
WIDER = 2.0  # than what is drawn, on each side
MOST_TICKS = 10
LEAST_SPAN = 30.0  # of an axis, from end to end


def roofline(result: RooflineResult) -> str:
    """Draw the roofs, and below them each engine and its products alone.

    The result has roofs, a bandwidth, and for each engine its operations a byte.
    """
    bandwidth = result.bandwidth_gb_s or 0.0
    with rc_context(STYLE | {"axes.grid.axis": "both"}):
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        axes = figure.subplots()
        low, high = _intensities(result, bandwidth)
        for place, roof in enumerate(result.roofs):
            _roof(axes, roof, _style(result, place), (bandwidth, low, high))
        _memory(axes, result, bandwidth, low)
        for place, one in enumerate(result.engines):
            _engine(axes, one, MARKERS[place % len(MARKERS)], _colour(result, one))
        axes.set_xlim(low, high)
        _axes(axes)
        figure.legend(ncols=2, loc="outside lower center", fontsize=10)
        return svg(figure, "Roofline: operations a second against operations a byte")


def _style(result: RooflineResult, place: int) -> tuple[str, str]:
    """Return the colour of a roof, which is its precision's, and its line."""
    kinds = [roof.name.partition(" ")[2] for roof in result.roofs]
    several = list(dict.fromkeys(kinds))
    turn = kinds[:place].count(kinds[place])
    return SERIES[several.index(kinds[place]) % len(SERIES)], LINES[turn % len(LINES)]


def _colour(result: RooflineResult, one: RoofedEngine) -> str:
    names = [roof.name for roof in result.roofs]
    return _style(result, names.index(one.roof or ""))[0]


def _roof(
    axes: Axes, roof: Roof, style: tuple[str, str], place: tuple[float, float, float]
) -> None:
    """Draw a roof from where it leaves the memory's, with its height in words."""
    bandwidth, low, high = place
    colour, line = style
    ridge = max(low, roof.gflops / bandwidth)
    label = f"{roof.name}: {roof.gflops:,.0f} GFLOP/s at most"
    axes.plot((ridge, high), (roof.gflops,) * 2, color=colour, linestyle=line, label=label)


def _memory(axes: Axes, result: RooflineResult, bandwidth: float, low: float) -> None:
    most = max(roof.gflops for roof in result.roofs)
    label = f"memory: {bandwidth:,.1f} GB/s"
    ends = (low, most / bandwidth)
    axes.plot(ends, [bandwidth * end for end in ends], color=INK, label=label)


def _engine(axes: Axes, one: RoofedEngine, marker: str, colour: str) -> None:
    """Draw an engine, filled, below its products alone."""
    where = one.flop_per_byte or 0.0
    axes.plot((where, where), (one.gflops, one.roof_gflops), color=colour, linewidth=1)
    axes.plot(where, one.roof_gflops, marker=marker, color=colour, markerfacecolor="none")
    axes.plot(where, one.gflops, marker=marker, color=colour, linestyle="", label=one.engine)


def _intensities(result: RooflineResult, bandwidth: float) -> tuple[float, float]:
    """Return the ends of the axis: ridges and engines are inside."""
    found = [one.flop_per_byte or 1.0 for one in result.engines]
    found += [roof.gflops / bandwidth for roof in result.roofs]
    low, high = min(found) / WIDER, max(found) * WIDER
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
    axes.set_xlabel("FLOP a byte that products read or write")
    axes.set_ylabel("GFLOP/s")


def _ticks(low: float, high: float) -> Sequence[float]:
    rounds = [digit * 10.0**power for power in range(-3, 8) for digit in (1, 2, 5)]
    inside = [tick for tick in rounds if low <= tick <= high]
    return inside if len(inside) <= MOST_TICKS else [one for one in inside if f"{one:e}"[0] == "1"]
