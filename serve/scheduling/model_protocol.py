"""The interface between the endpoints and one version of a model."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pipework.data.examples import Example
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest, TrainingReadOptions
from pipework.serve.request.context import RequestOptions
from pipework.serve.request.statistics import EngineLoad, Totals
from pipework.serve.scheduling.in_flight import RunningBatch
from pipework.tasks.predictions import Prediction
from pipework.tasks.task import Task
from pipework.wire.text_tensors import InputTexts, OutputTensors

INLINE_LOGITS = 20_000  # predictions of more logits are made and written outside of the event loop
T = TypeVar("T")


async def run_for_logits(logits: int, function: Callable[[], T]) -> T:
    """Return the result of a function that makes or writes predictions of this many logits."""
    return await asyncio.to_thread(function) if logits > INLINE_LOGITS else function()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    """Description of one version of a model.

    Attributes:
        task: kind, labels and thresholds.
        entities: whether each input text has two marked entities.
        precision: number format that the engine computes in.
        reading: how the training data was read.
    """

    task: Task
    reading: TrainingReadOptions
    entities: bool = False
    precision: str = ""

    @classmethod
    def of(cls, manifest: Manifest, record: EngineRecord) -> "ModelCard":
        """Return the card of a run that is served with the given engine."""
        return cls(
            task=manifest.task,
            entities=manifest.input.marked,
            precision=str(record.precision),
            reading=TrainingReadOptions.of(manifest.data),
        )


class ServedModel(Protocol):
    """The interface between the endpoints and one version of a model."""

    name: str
    version: str
    engine: str

    @property
    def alive(self) -> bool:
        """Whether an engine runs or is being reopened."""

    @property
    def ready(self) -> bool:
        """Whether an engine is open and requests are accepted."""

    @property
    def load(self) -> EngineLoad:
        """Queue length and engine counters."""

    @property
    def oldest_batch(self) -> RunningBatch | None:
        """The batch that was started first of those that engines compute; None if all are idle."""

    def check_room(self) -> None:
        """Check that a request would be accepted now; see `Scheduler.check_room`."""

    @property
    def card(self) -> ModelCard:
        """Description of this version."""

    @property
    def totals(self) -> Totals:
        """Request counters."""

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the input tensors."""

    @property
    def classes(self) -> int:
        """Number of logits per text."""

    async def predict(
        self,
        examples: Sequence[Example],
        top_k: int | None = None,
        options: RequestOptions | None = None,
    ) -> list[Prediction]:
        """Return a prediction for each example."""

    async def answer(
        self, texts: InputTexts, options: RequestOptions | None = None
    ) -> OutputTensors:
        """Return predictions as tensors."""

    def close(self) -> None:
        """Finish accepted requests, then free the engines. Blocks until done."""
