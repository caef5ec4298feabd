"""The union of all stored results: those of `pipe bench` and those of the studies.

`python -m pipework.benchmarks.studies.records.stored_results [--check]` writes the JSON schema of
stored results. It is generated from the record classes; their docstrings define the fields and
units.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from pipework.benchmarks.results_schema.comparison import ComparisonResult
from pipework.benchmarks.results_schema.results import BenchResult, read_as
from pipework.benchmarks.studies.records.bulk_results import BulkResult
from pipework.benchmarks.studies.records.engine_results import (
    EnginesResult,
    FaultsResult,
    MatrixResult,
    RooflineResult,
)
from pipework.benchmarks.studies.records.experiment_results import ExperimentResult
from pipework.benchmarks.studies.records.peer_serving_results import PeerServingResult
from pipework.benchmarks.studies.records.training_results import (
    ImportsResult,
    TrainingResult,
)
from pipework.run_folder.files import write_atomically

StoredResult = (
    BenchResult
    | TrainingResult
    | ImportsResult
    | EnginesResult
    | MatrixResult
    | FaultsResult
    | RooflineResult
    | PeerServingResult
    | ExperimentResult
    | ComparisonResult
    | BulkResult
)
PATH = Path(__file__).parents[1] / "schema.json"
STORED: TypeAdapter[StoredResult] = TypeAdapter(
    Annotated[StoredResult, Field(discriminator="kind")]
)


def read_stored(path: Path) -> StoredResult:
    """Read a stored result of any kind.

    Raises:
        DataError: the file is missing or not a result of this schema.
    """
    return read_as(path, STORED)


def schema() -> str:
    """Return the schema of all kinds of results (JSON Schema 2020-12)."""
    generated = STORED.json_schema(mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Result"}
    return json.dumps(head | generated, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check schema.json; return the exit code, 3 if a checked file differs."""
    parser = argparse.ArgumentParser(
        prog="python -m pipework.benchmarks.studies.records.stored_results", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 if it differs")
    if parser.parse_args(arguments).check:
        equal = PATH.is_file() and PATH.read_text(encoding="utf-8") == schema()
        if not equal:
            message = f"{PATH.name} differs from the schema of the record classes"
            sys.stderr.write(
                f"{message}: python -m pipework.benchmarks.studies.records.stored_results\n"
            )
        return 0 if equal else 3
    write_atomically(PATH, schema().encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
