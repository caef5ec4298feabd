"""Write rows of data files that a user should look at to a csv file."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipework.data.examples import Source
from pipework.data.readers import safe_cell
from pipework.errors import ConfigError
from pipework.run_folder.files import check_writable, write_atomically


def check_csv_file(out: Path | None, sources: Iterable[Source] = ()) -> None:
    """Check that `write_csv_file` can write a file, if there is one.

    Raises:
        ConfigError: `out` has another suffix than .csv, cannot be written, or is a data file.
    """
    if out is None:
        return
    if out.suffix != ".csv":
        message = f"{out}: expected a file ending in .csv"
        raise ConfigError(message)
    check_writable(out, [source.path for source in sources])


def write_csv_file(
    out: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    sources: Iterable[Source],
) -> int:
    """Write rows of data files to a csv file, which must not be one of them; return their number.

    Raises:
        ConfigError: `out` cannot be written, or is a data file.
    """
    cells = [list(map(safe_cell, row)) for row in rows]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([columns, *cells])
    check_writable(out, [source.path for source in sources])
    write_atomically(out, stream.getvalue().encode())
    return len(cells)
