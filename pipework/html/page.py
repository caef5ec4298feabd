"""Build a self-contained HTML page from its parts.

Strings that are documented as HTML are inserted unchanged; all other strings are escaped.
"""

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
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
{body}
</body>
</html>
"""


def render_page(title: str, parts: Iterable[str]) -> str:
    """Return a page whose parts are HTML."""
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return PAGE.format(title=escape(title), css=css, body="\n".join(parts))


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
