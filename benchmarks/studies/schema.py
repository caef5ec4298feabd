"""The JSON schema of stored results, as a file: `python -m pipework.benchmarks.studies.schema [--check]`.

It is made of the records, whose docstrings say what their fields mean and in which unit.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pipework.benchmarks.studies.stored_results import STORED
from pipework.run_folder.files import write_atomically

PATH = Path(__file__).with_name("schema.json")


def schema() -> str:
    """Return the schema of all kinds of results (JSON Schema 2020-12)."""
    found = STORED.json_schema(mode="serialization")
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Result"} | found
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or only compare it; exit 3 where it differs."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.schema", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="write nothing, exit 3 if it differs")
    if parser.parse_args(arguments).check:
        same = PATH.is_file() and PATH.read_text(encoding="utf-8") == schema()
        if not same:
            sys.stderr.write(
                f"{PATH.name} is not that of the records: python -m pipework.benchmarks.studies.schema\n"
            )
        return 0 if same else 3
    write_atomically(PATH, schema().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
