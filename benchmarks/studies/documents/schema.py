"""Write the JSON schema of stored results.

`python -m pipework.benchmarks.studies.documents.schema [--check]`

The schema is generated from the record classes; their docstrings define the fields and units.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipework.benchmarks.studies.records.stored_results import STORED
from pipework.run_folder.files import write_atomically

PATH = Path(__file__).parents[1] / "schema.json"


def schema() -> str:
    """Return the schema of all kinds of results (JSON Schema 2020-12)."""
    generated = STORED.json_schema(mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Result"}
    return json.dumps(head | generated, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check schema.json; return the exit code, 3 if a checked file differs."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.documents.schema", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 if it differs")
    if parser.parse_args(arguments).check:
        equal = PATH.is_file() and PATH.read_text(encoding="utf-8") == schema()
        if not equal:
            message = f"{PATH.name} differs from the schema of the record classes"
            sys.stderr.write(f"{message}: python -m pipework.benchmarks.studies.documents.schema\n")
        return 0 if equal else 3
    write_atomically(PATH, schema().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
