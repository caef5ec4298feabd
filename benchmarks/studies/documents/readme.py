"""Fill the tables of the documents from the stored results.

`python -m pipework.benchmarks.studies.documents.readme [--check]`

The documents are README.md and, in benchmarks/studies, RESULTS.md and MATRIX.md. A table is the
text between `<!-- table:NAME -->` and `<!-- /table:NAME -->`. A document may contain any of the
tables.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pipework.benchmarks.studies.documents.study_tables import Results, TableName, table
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.benchmarks.studies.script import report_errors
from pipework.errors import CheckFailedError, ConfigError
from pipework.git import CHECKOUT
from pipework.run_folder.files import write_atomically

ROOT = CHECKOUT
RESULTS = Path(__file__).parents[1] / "results"
DOCUMENTS = ("README.md", "benchmarks/studies/RESULTS.md", "benchmarks/studies/MATRIX.md")
OPEN = re.compile(r"<!-- table:(\S+) -->")


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check the tables of all documents; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.documents.readme", description=__doc__
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 3 if a table differs"
    )
    options = parser.parse_args(arguments)
    update([ROOT / name for name in DOCUMENTS], read_all(RESULTS), check=options.check)
    return 0


def read_all(folder: Path) -> Results:
    """Read all results of a folder in the order of their file names.

    Raises:
        DataError: a file is not a stored result.
    """
    return [read_stored(path) for path in sorted(folder.glob("*.json"))]


def update(paths: Sequence[Path], results: Results, *, check: bool) -> None:
    """Rewrite the tables of Markdown files, or with `check` only compare them.

    Raises:
        CheckFailedError: with `check`, a table differs from the stored results.
        ConfigError: a file is missing, or its markers are wrong.
    """
    # All files are filled before the first is written, so that wrong markers change none of them.
    changed: dict[Path, str] = {}
    for path in paths:
        old = _read(path)
        new = fill(old, results)
        if new != old:
            changed[path] = new
    if check and changed:
        names = ", ".join(path.name for path in changed)
        message = f"the tables of {names} differ from the stored results"
        hint = "rewrite them: python -m pipework.benchmarks.studies.documents.readme"
        raise CheckFailedError(message, hint)
    for path, text in changed.items():
        write_atomically(path, text.encode())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message, "run the command in a complete checkout") from error


def fill(text: str, results: Results) -> str:
    """Return a Markdown text with its tables rebuilt from results.

    Raises:
        ConfigError: a marker has an unknown name or no closing marker.
    """
    parts, end = [], 0
    for opening in OPEN.finditer(text):
        start, end_of_table = opening.end(), _closing(text, opening)
        parts.append(f"{text[end:start]}\n{table(TableName(opening[1]), results)}\n")
        end = end_of_table
    return "".join(parts) + text[end:]


def _closing(text: str, opening: re.Match[str]) -> int:
    """Return the position of the closing marker that belongs to an opening marker."""
    name = opening[1]
    marker = f"<!-- /table:{name} -->"
    position = text.find(marker, opening.end())
    if name not in list(TableName):
        message = f"<!-- table:{name} -->: unknown table {name}"
        raise ConfigError(message, f"known tables: {', '.join(TableName)}")
    if position < 0 or OPEN.search(text, opening.end(), position):
        message = f"<!-- table:{name} --> has no {marker}"
        raise ConfigError(message, "put the closing marker on the line after the table")
    return position


if __name__ == "__main__":
    sys.exit(main())
