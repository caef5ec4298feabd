"""Rows whose text is also in an earlier split, without regard to case and white space.

Shapes: N rows.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Example, Source, folded_text
from pipework.data.readers import safe_cell
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.run_folder.files import check_writable, write_atomically

COLUMNS = (
    *("split", "line", "label", "earlier split", "earlier line", "earlier label"),
    *("text", "text_pair"),
)


def leaked_rows(train: Source, rows: Sequence[Example]) -> NDArray[np.bool_]:
    """Return which rows have a text that is also in train, bool [N]; reads train once."""
    texts = list(map(folded_text, rows))
    shared = set(texts).intersection(map(folded_text, train.rows()))
    return np.array([text in shared for text in texts], np.bool_)


def check_leaks_file(out: Path | None) -> None:
    """Check that `write_leaks` can write a file, if there is one.

    Raises:
        ConfigError: `out` has another suffix than .csv, or cannot be written.
    """
    if out is None:
        return
    if out.suffix != ".csv":
        message = f"{out}: expected a file ending in .csv"
        raise ConfigError(message)
    check_writable(out)


def write_leaks(sources: Mapping[str, Source], out: Path, progress: Progress) -> None:
    """Write the rows that are also in an earlier split to a csv file.

    Each has the first row with the same text. All splits but the first are held in memory.

    Raises:
        ConfigError: `out` cannot be written.
    """
    rows = [list(map(safe_cell, row)) for row in _leaks(sources)]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *rows])
    check_writable(out, [source.path for source in sources.values()])
    write_atomically(out, stream.getvalue().encode())
    progress.note(f"leaked rows written to {out}: {len(rows):,}")


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
