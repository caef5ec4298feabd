"""Tables for a terminal, as plain text."""

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table as Drawn

from pipework.benchmarks.report.tables import Table

WIDTH = 110


def drawn(title: str, tables: Iterable[Table], lines: Sequence[str]) -> str:
    """Return tables under a title, and lines below them, at most 110 columns wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, color_system=None, markup=False, highlight=False)
    console.print(title)
    for table in tables:
        shown = Drawn(*table.head, title=table.title, title_justify="left")
        for column in shown.columns[1:]:
            column.justify = "right"
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for line in lines:
        console.print(line)
    return stream.getvalue()
