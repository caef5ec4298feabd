"""The union of all stored results: those of `pipe bench` and those of the studies."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from pipework.benchmarks.results_schema.comparison import ComparisonResult
from pipework.benchmarks.results_schema.results import BenchResult, read_as
from pipework.benchmarks.studies.records.engine_results import (
    EnginesResult,
    FaultsResult,
    MatrixResult,
)
from pipework.benchmarks.studies.records.experiment_results import ExperimentResult
from pipework.benchmarks.studies.records.peer_serving_results import PeerServingResult
from pipework.benchmarks.studies.records.roofline_results import RooflineResult
from pipework.benchmarks.studies.records.serving_results import AgreementResult, ServingResult
from pipework.benchmarks.studies.records.training_results import (
    FamiliesResult,
    PeerTrainingResult,
    PresetsResult,
    TrainingResult,
)

StoredResult = (
    BenchResult
    | TrainingResult
    | FamiliesResult
    | PeerTrainingResult
    | EnginesResult
    | MatrixResult
    | FaultsResult
    | PresetsResult
    | ServingResult
    | RooflineResult
    | PeerServingResult
    | ExperimentResult
    | ComparisonResult
    | AgreementResult
)
STORED: TypeAdapter[StoredResult] = TypeAdapter(
    Annotated[StoredResult, Field(discriminator="kind")]
)


def read_stored(path: Path) -> StoredResult:
    """Read a stored result of any kind.

    Raises:
        DataError: the file is missing or not a result of this schema.
    """
    return read_as(path, STORED)
