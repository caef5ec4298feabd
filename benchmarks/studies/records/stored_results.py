"""The union of all stored results, of `pipe bench` and of the studies, and its JSON schema.

The schema is generated from the record classes; their docstrings define the fields and units.
"""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from pipework.benchmarks.results_schema.comparison import ComparisonResult
from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION
from pipework.benchmarks.results_schema.results import BenchResult
from pipework.benchmarks.studies.records.bulk_results import BulkResult
from pipework.benchmarks.studies.records.cascade_results import CascadesResult
from pipework.benchmarks.studies.records.engine_results import EnginesResult, RooflineResult
from pipework.benchmarks.studies.records.experiment_results import ExperimentResult
from pipework.benchmarks.studies.records.grid_results import GridResult
from pipework.benchmarks.studies.records.peer_serving_results import PeerServingResult
from pipework.benchmarks.studies.records.training_results import TrainingResult
from pipework.errors import DataError

StoredResult = (
    BenchResult
    | ComparisonResult
    | TrainingResult
    | EnginesResult
    | GridResult
    | RooflineResult
    | PeerServingResult
    | ExperimentResult
    | BulkResult
    | CascadesResult
)
STORED: TypeAdapter[StoredResult] = TypeAdapter(
    Annotated[StoredResult, Field(discriminator="kind")]
)


def read_stored(path: Path) -> StoredResult:
    """Read a stored result of any kind.

    Raises:
        DataError: the file is missing or not a result of this schema.
    """
    try:
        return STORED.validate_json(path.read_bytes())
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DataError(message) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"{path} is not a result of schema {SCHEMA_VERSION}: {where}: {first['msg']}"
        raise DataError(message, "measure again with this version") from error


def schema() -> str:
    """Return the schema of all kinds of results (JSON Schema 2020-12)."""
    generated = STORED.json_schema(mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Result"}
    return json.dumps(head | generated, indent=1, ensure_ascii=False) + "\n"
