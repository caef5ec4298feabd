"""The plot of RESULTS.md: the cost of a text in a cascade against the limit on other labels."""

from collections.abc import Iterable
from itertools import cycle

from pipework.benchmarks.studies.records.cascade_results import CascadesResult


def cascade_plot(results: Iterable[object]) -> str:
    """Return the plot as an SVG file: a line for each result, with the highest measured load.

    The cost is the time of a text of the cascade, relative to that of its engine alone; a bar is
    its confidence interval.
    """
    from matplotlib import rc_context  # noqa: PLC0415  (needs an extra)
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    from pipework.html.svg import (  # noqa: PLC0415
        INK,
        SERIES,
        STYLE,
        new_axes,
        number,
        standalone,
        svg,
    )

    drawn = [result for result in results if isinstance(result, CascadesResult)]
    with rc_context(STYLE):
        figure, axes = new_axes()
        axes.axhline(1, linestyle="--", linewidth=1, color=INK)
        for result, colour in zip(drawn, cycle(SERIES), strict=False):
            limits_N = [100 * point.max_difference for point in result.points]
            rates = [point.rates[-1] for point in result.points]
            cost_N = [1 / rate.ratio for rate in rates]
            bars_N = [
                [cost - 1 / rate.high for cost, rate in zip(cost_N, rates, strict=True)],
                [1 / rate.low - cost for cost, rate in zip(cost_N, rates, strict=True)],
            ]
            name = f"{result.dataset}: {result.first}"
            axes.errorbar(limits_N, cost_N, bars_N, color=colour, marker="o", capsize=3, label=name)
        ticks = sorted({100 * point.max_difference for each in drawn for point in each.points})
        if ticks:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(number))
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
        axes.set_xlabel("limit on texts with another label, %")
        axes.set_ylabel("cost of a text, engine alone = 1")
        axes.set_ylim(bottom=0)
        return standalone(svg(figure, "Cost of a text against the limit"))
