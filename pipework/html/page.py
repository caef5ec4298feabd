"""Build a self-contained HTML page from its parts.

Strings that are documented as HTML are inserted unchanged; all other strings are escaped.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

# The content security policy prevents the page from loading anything.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
{refresh}<title>{title}</title>
<style>
{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


PLOT_WIDTH, PLOT_HEIGHT, LEFT, BOTTOM, TOP = 560, 300, 64, 26, 24
POINTS = 400
TICKS = 4  # of the steps
VALUES = 6  # distances between the values of an axis, at most


def render_page(title: str, parts: Iterable[str], refresh_s: int | None = None) -> str:
    """Return a page whose parts are HTML; with `refresh_s` a browser reloads it."""
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">\n' if refresh_s else ""
    return PAGE.format(title=escape(title), css=css, body="\n".join(parts), refresh=refresh)


def header(title: str, line: str) -> str:
    """Return the header of a page."""
    return f'<header><h1>{escape(title)}</h1><p class="quiet">{escape(line)}</p></header>'


def section(title: str, content: str) -> str:
    """Return a section around HTML."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def tiles(figures: Iterable[tuple[str, str, str]]) -> str:
    """Return headline figures: value, unit, caption."""
    figure_tiles = (
        f'<div class="tile"><b>{escape(value)} <small>{escape(unit)}</small></b>'
        f"<span>{escape(caption)}</span></div>"
        for value, unit, caption in figures
    )
    return f'<div class="tiles">{"".join(figure_tiles)}</div>'


def plots(drawn: Iterable[tuple[str, str, str]]) -> str:
    """Return plots: title, caption, and the SVG, which is HTML."""
    figures = (
        f"<figure><h3>{escape(title)}</h3><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for title, caption, svg in drawn
    )
    return f'<div class="plots">{"".join(figures)}</div>'


def line_plot(lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return lines through points (step, value) as SVG, without infinite values.

    This takes a millisecond, so a page can be written at each evaluation of a run;
    `pipework.html.svg` takes 0.1 s.
    """
    finite = {
        name: [(step, value) for step, value in points if math.isfinite(value)]
        for name, points in lines.items()
    }
    shown = {name: points[:: -(len(points) // POINTS + 1)] for name, points in finite.items()}
    if not any(shown.values()):
        return ""
    steps, values = zip(*(point for points in shown.values() for point in points), strict=True)
    low, high, last = min(values), max(values), max(steps)
    span = high - low or abs(high) or 1.0

    def place(step: float, value: float) -> str:
        x = LEFT + (PLOT_WIDTH - LEFT - 10) * step / max(last, 1)
        y = PLOT_HEIGHT - BOTTOM - (PLOT_HEIGHT - BOTTOM - TOP) * (value - low) / span
        return f"{x:.1f},{y:.1f}"

    parts = []
    for value in _round_values(low, low + span):
        y = place(0, value).partition(",")[2]
        shape = f'x="{LEFT - 6}" y="{y}" text-anchor="end" dy=".3em"'
        parts.append(f'<path d="M{LEFT} {y}H{PLOT_WIDTH}" stroke="var(--grid)"/>')
        parts.append(f"<text {shape}>{value:,.6g}</text>")
    for number, (name, points) in enumerate(shown.items()):
        colour = f"var(--series-{number % 4 + 1})"
        parts.append(_curve([place(step, value) for step, value in points], colour))
        if len(shown) > 1:
            left = LEFT + number * (PLOT_WIDTH - LEFT) // len(shown)
            parts.append(f'<text x="{left}" y="14" style="fill: {colour}">{escape(name)}</text>')
    for step in sorted({last * tick // TICKS for tick in range(1, TICKS + 1)}):
        x = place(step, 0).partition(",")[0]
        unit = "step " if step == last else ""
        parts.append(f'<text x="{x}" y="{PLOT_HEIGHT - 6}" text-anchor="end">{unit}{step:,}</text>')
    style = "font-size: 13px; fill: var(--ink-2)"
    return f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" style="{style}">{"".join(parts)}</svg>'


def _round_values(low: float, high: float) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten in a range."""
    smallest = (high - low) / VALUES
    power = 10.0 ** math.floor(math.log10(smallest))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= smallest)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _curve(places: Sequence[str], colour: str) -> str:
    """Return a line through places "x,y" as SVG; a single one is a circle, else it is invisible."""
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
    line = " ".join(places)
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'


def table(columns: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """Return a table with a CSS class; the rows are HTML. A wide table scrolls horizontally."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    opened = f'<table class="{kind}">' if kind else "<table>"
    whole = f"{opened}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{whole}</div>'


def cells(row: Iterable[str]) -> str:
    """Return the cells of a table row."""
    return "".join(f"<td>{escape(cell)}</td>" for cell in row)


def facts(title: str, values: Mapping[str, str]) -> str:
    """Return a list of names and values."""
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in values.items())
    return f"<section><h3>{escape(title)}</h3><dl>{items}</dl></section>"
