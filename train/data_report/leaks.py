"""Rows whose text is also in an earlier split, without regard to case and white space.

Shapes: N rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source, folded_text
from pipework.progress import Progress
from pipework.train.data_report.csv_file import write_csv_file

COLUMNS = (
    *("split", "line", "label", "earlier split", "earlier line", "earlier label"),
    *("text", "text_pair"),
)


def leaked_rows(train: Source, rows: Sequence[Example]) -> NDArray[np.bool_]:
    """Return which rows have a text that is also in train, bool [N]; reads train once."""
    texts = list(map(folded_text, rows))
    shared = set(texts).intersection(map(folded_text, train.rows()))
    return np.array([text in shared for text in texts], np.bool_)


def write_leaks(sources: Mapping[str, Source], out: Path, progress: Progress) -> None:
    """Write the rows that are also in an earlier split to a csv file.

    Each has the first row with the same text. All splits but the first are held in memory.

    Raises:
        ConfigError: `out` cannot be written.
    """
    rows = write_csv_file(out, COLUMNS, _leaks(sources), sources.values())
    progress.note(f"leaked rows written to {out}: {rows:,}")


def _leaks(sources: Mapping[str, Source]) -> Iterator[tuple[object, ...]]:
    """Yield the values of COLUMNS for each leaked row."""
    names = list(sources)
    later = {name: list(sources[name].rows()) for name in names[1:]}
    wanted = {folded_text(row) for rows in later.values() for row in rows}
    places: dict[int, tuple[object, ...]] = {}
    for name in names:
        found: dict[int, tuple[object, ...]] = {}
        for row in later.get(name) or sources[name].rows():
            text = folded_text(row)
            place = (name, row.line, ", ".join(row.labels))
            if text in places:
                yield (*place, *places[text], row.text, row.text_pair or "")
            elif text in wanted:
                found.setdefault(text, place)
        places |= found
