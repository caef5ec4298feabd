"""Stored results of engines."""

from typing import Literal

from pipework.benchmarks.results_schema.provenance import SCHEMA_VERSION, Provenance
from pipework.run_folder.files import Record


class EngineResult(Record):
    """An engine: its size, its proof as the manifest has it, its speed beside the others.

    `change` is of the task's score on dev, from the checkpoint's, with its 95 % interval; `kept`
    counts the layers that were left in a higher precision.
    """

    name: str
    mib: float
    max_abs: float
    spread: float
    agreement: float
    change: float
    low: float
    high: float
    kept: int
    packed: bool
    texts_per_s: float
    p50_ms: float


class EnginesResult(Record):
    """The engines of a run, the fastest first, measured in turns on the same texts.

    `by_hand` is onnxruntime in fp32 on calls of `batch` texts in arrival order, each padded to
    its longest. `rows` counts the texts.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["engines"] = "engines"
    dataset: str
    metric: str
    rows: int
    batch: int
    threads: int
    processor: str
    by_hand_texts_per_s: float
    by_hand_p50_ms: float
    engines: tuple[EngineResult, ...]
    commands: tuple[str, ...]
    provenance: Provenance


class Cell(Record):
    """An engine of a family with a head: its largest difference of a logit, or why it is not.

    Both are None for one that was built and cannot be run here.
    """

    family: str
    head: str
    engine: str
    max_abs: float | None
    reason: str | None

    @property
    def key(self) -> tuple[str, str, str]:
        """Which cell it is."""
        return self.family, self.head, self.engine

    @property
    def proven(self) -> bool:
        """Whether it was run and answers as its checkpoint does."""
        return self.max_abs is not None


class MatrixResult(Record):
    """Which families with which heads become which engines; `weights` says of which models.

    `earlier` says where cells come from that an earlier call made, of another commit; `command` is
    of the last one, none in results of before it was stored.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["matrix"] = "matrix"
    weights: str
    cells: tuple[Cell, ...]
    command: tuple[str, ...] = ()
    provenance: Provenance
    earlier: tuple[Provenance, ...] = ()
