"""Draw plots as inline SVG for a self-contained page.

The colours are CSS variables of the page (`page.css`), so that they follow light and dark mode.
This module needs matplotlib: import it in the function that draws.
"""

import io
import re
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

# Matplotlib has no CSS variables: it draws in these colours, which are replaced afterwards.
INK, GRID = "#000001", "#000002"
SERIES = ("#000011", "#000012", "#000013", "#000014")
VARIABLES = {INK: "--ink-2", GRID: "--grid"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
STYLE: dict[Any, Any] = {
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 2,
    "lines.markersize": 6,
    "svg.fonttype": "none",  # searchable text in the page's font
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.color": GRID,
    "xtick.labelcolor": INK,
    "ytick.color": GRID,
    "ytick.labelcolor": INK,
    "ytick.left": False,
}
WIDTH_IN, HEIGHT_IN = 5.6, 3.4
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def new_axes() -> tuple[Figure, Axes]:
    """Return a figure of the default size with round numbers on the y axis."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(number))
    return figure, axes


def number(value: float, _: int) -> str:
    """Format a tick with thousands separators."""
    return f"{value:,.10g}"


def svg(figure: Figure, description: str) -> str:
    """Return a figure as SVG to insert into HTML; text is not converted to paths."""
    stream = io.StringIO()
    with rc_context({"svg.hashsalt": description}):  # ids differ between plots, not between runs
        figure.savefig(stream, format="svg", transparent=True, metadata=NO_METADATA)
    drawn = stream.getvalue()
    drawn = drawn[drawn.index("<svg") :]  # without the prologue, which references an external DTD
    drawn = re.sub(r' (?:width|height)="[\d.]+pt"', "", drawn, count=2)
    for colour, variable in VARIABLES.items():
        drawn = drawn.replace(colour, f"var({variable})")
    return drawn.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)


def standalone(drawn: str) -> str:
    """Return the SVG of `svg` as the text of a file, with the colours of the page."""
    page = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return drawn.replace(">", f"><style>{page.partition('* {')[0]}</style>", 1)
