"""Write the generated parts of the documents.

`python -P -m pipework.benchmarks.studies.documents.readme [--check]`

A table is the text between `<!-- table:NAME -->` and `<!-- /table:NAME -->`, generated from the
stored results, or between `<!-- settings:NAME -->` and `<!-- /settings:NAME -->`, generated from
the settings classes. A document may contain any of the tables. `schema.json` is generated from the
classes of the results, and `cascades.svg` from the stored results.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pipework.benchmarks.studies.documents import settings_reference, study_tables
from pipework.benchmarks.studies.documents.cascade_plot import cascade_plot
from pipework.benchmarks.studies.documents.study_tables import Results
from pipework.benchmarks.studies.records.stored_results import read_stored, schema
from pipework.benchmarks.studies.script import report_errors
from pipework.errors import CheckFailedError, ConfigError
from pipework.git import CHECKOUT
from pipework.run_folder.files import write_atomically

ROOT = CHECKOUT
RESULTS = Path(__file__).parents[1] / "results"
SCHEMA = "benchmarks/studies/schema.json"
PLOT = "benchmarks/studies/cascades.svg"
DOCUMENTS = (
    *("README.md", "benchmarks/studies/RESULTS.md", "benchmarks/studies/MATRIX.md"),
    *("train/README.md", "export/README.md", "serve/README.md"),
)
OPEN = re.compile(r"<!-- ((?:table|settings):\S+) -->")
COMMAND = "python -P -m pipework.benchmarks.studies.documents.readme"


@report_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite or check all documents; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 on differences")
    options = parser.parse_args(arguments)
    documents = [ROOT / name for name in DOCUMENTS]
    results = read_all(RESULTS)
    update(documents, lambda text: fill(text, results), check=options.check)
    update([ROOT / SCHEMA], lambda _: schema(), check=options.check)
    update([ROOT / PLOT], lambda _: cascade_plot(results), check=options.check)
    return 0


def read_all(folder: Path) -> Results:
    """Read all results of a folder in the order of their file names.

    Raises:
        DataError: a file is not a stored result.
    """
    return [read_stored(path) for path in sorted(folder.glob("*.json"))]


def update(paths: Sequence[Path], filled: Callable[[str], str], *, check: bool) -> None:
    """Rewrite files, or with `check` only compare them with their new text.

    Raises:
        CheckFailedError: with `check`, a file differs from its sources.
        ConfigError: a file is missing, or its markers are wrong.
    """
    # All texts are made before the first is written, so that wrong markers change no file.
    old = {path: _read(path) for path in paths}
    new = {path: filled(text) for path, text in old.items()}
    changed = [path for path in paths if new[path] != old[path]]
    if check and changed:
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in changed)
        message = f"the generated parts of {names} differ from their sources"
        raise CheckFailedError(message, f"rewrite them: {COMMAND}")
    for path in changed:
        write_atomically(path, new[path].encode())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(message, "run the command in a complete checkout") from error


def fill(text: str, results: Results) -> str:
    """Return a Markdown text with its tables generated again.

    Raises:
        ConfigError: a marker has an unknown name or no closing marker, or a key has no meaning.
    """
    known = generators(results)
    parts: list[str] = []
    end = 0
    for opening in OPEN.finditer(text):
        closing = _closing(text, opening, known)
        parts.append(f"{text[end : opening.end()]}\n{known[opening[1]]()}\n")
        end = closing
    return "".join(parts) + text[end:]


def generators(results: Results) -> Mapping[str, Callable[[], str]]:
    """Return the functions that generate the tables, by the name in the marker."""
    tables = {
        f"table:{name}": partial(table, results) for name, table in study_tables.TABLES.items()
    }
    settings = {f"settings:{name}": text for name, text in settings_reference.TABLES.items()}
    return {**tables, **settings}


def _closing(text: str, opening: re.Match[str], known: Mapping[str, object]) -> int:
    """Return the position of the closing marker that belongs to an opening marker."""
    name = opening[1]
    marker = f"<!-- /{name} -->"
    position = text.find(marker, opening.end())
    if name not in known:
        message = f"<!-- {name} -->: unknown table {name}"
        raise ConfigError(message, f"known tables: {', '.join(known)}")
    if position < 0 or OPEN.search(text, opening.end(), position):
        message = f"<!-- {name} --> has no {marker}"
        raise ConfigError(message, "put the closing marker on the line after the table")
    return position


if __name__ == "__main__":
    sys.exit(main())
