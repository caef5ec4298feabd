"""A roofline for people: `python -m pipework.benchmarks.studies.report_roofline RESULT PAGE` draws a stored one."""

import argparse
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipework.benchmarks.report.bench_page import origin
from pipework.benchmarks.results_schema.results import check_writable
from pipework.benchmarks.studies.roofline_results import (
    HEAD,
    Roof,
    RoofedEngine,
    RooflineResult,
    roofline_rows,
)
from pipework.benchmarks.studies.stored_results import read_stored
from pipework.errors import DataError, PipeError, in_words
from pipework.html import page as frame
from pipework.html.svg import INK, SERIES, STYLE, number, svg
from pipework.run_folder.files import write_atomically

DRAWN = (
    "A roof is what large products reach in that runtime and precision; left of its edge the memory"
    " lets through less. A filled mark is an engine, the hollow one above it its matrix products"
    " alone, in the same calls."
)
COUNTED = (
    "Operations are those of the matrix products, each multiplication and each addition. Bytes are"
    " what the products read and write if no cache keeps any between them, so that a mark is at"
    " least so far to the right as it stands."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a stored result; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.report_roofline", description=__doc__
    )
    parser.add_argument(
        "result", type=Path, help="of python -m pipework.benchmarks.studies.roofline"
    )
    parser.add_argument("page", type=Path, help="the .html file to write")
    given = parser.parse_args(arguments)
    try:
        result = read_stored(given.result)
        if not isinstance(result, RooflineResult):
            message = f"{given.result}: expected a roofline, found a result of kind {result.kind}"
            raise DataError(
                message,
                "make one: python -m pipework.benchmarks.studies.roofline RUN NAME --out FILE",
            )
        write_page(given.page, result)
    except (PipeError, ModuleNotFoundError) as error:
        known = in_words(error)
        if known is None:
            raise
        sys.stderr.write(f"error: {known}\n{known.hint}\n")
        return known.exit_code
    return 0


def write_page(path: Path, result: RooflineResult) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        DataError: the result has no roofs.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def page(result: RooflineResult) -> str:
    """Return one HTML page: headline figures, the roofline, its table, machine and versions.

    Raises:
        DataError: the result is of before roofs were measured.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if not result.roofs or result.bandwidth_gb_s is None:
        message = f"the roofline of {result.model} was stored without roofs and bandwidth"
        raise DataError(
            message,
            "measure again: python -m pipework.benchmarks.studies.roofline RUN NAME --out FILE",
        )
    made = f"{result.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    calls = f"calls of {result.batch_tokens:,} tokens"
    rows = (frame.cells(row[1:]) for row in roofline_rows(result))
    sent = {"source": result.texts, "a call": f"{result.batch_tokens:,} tokens"}
    plot = ("Engines under their roofs", DRAWN, roofline(result))
    table = frame.table(HEAD[1:], rows)
    parts = (
        frame.header(result.model, f"{result.texts} · {calls} · {made}"),
        f'<p class="verdict">{escape(limits(result))}</p>',
        frame.tiles(_tiles(result)),
        frame.section("Roofline", f'<div class="whole">{frame.plots([plot])}</div>'),
        frame.section("All figures", f'<p class="quiet">{COUNTED}</p>{table}'),
        frame.section(
            "What was measured, and on what",
            origin({"Workload": sent}, result.provenance, result.command),
        ),
    )
    return frame.whole(f"{result.model}: roofline", parts)


def limits(result: RooflineResult) -> str:
    """Say which engines the memory limits, and which the products."""
    bound = [one.engine for one in result.engines if _is_memory(result, one)]
    if not bound:
        return "All engines stand under the flat part of their roofs: memory does not limit them."
    if len(bound) == len(result.engines):
        return "All engines stand under the slope: memory may limit them before products do."
    return f"Memory may limit {', '.join(bound)} before products do; the others, products."


def _is_memory(result: RooflineResult, one: RoofedEngine) -> bool:
    roof = next(roof.gflops for roof in result.roofs if roof.name == one.roof)
    return (result.attainable(one) or 0.0) < roof


def _tiles(result: RooflineResult) -> list[tuple[str, str, str]]:
    fastest = result.engines[0]
    attainable = result.attainable(fastest) or 0.0
    share = f"{fastest.gflops / attainable:.0%}"
    return [
        (share, "of its roof", f"{fastest.engine}, the fastest; more is better"),
        (f"{fastest.share:.0%}", "of its products", f"{fastest.engine}; more is better"),
        (f"{attainable:,.0f}", "GFLOP/s", f"the roof above it: {fastest.roof}"),
        (f"{result.bandwidth_gb_s:,.1f}", "GB/s", "copied in memory, reads and writes counted"),
    ]


if __name__ == "__main__":
    sys.exit(main())


# After Williams et al. 2009, https://doi.org/10.1145/1498765.1498785.

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
