"""What the doors need of one version of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipework.data.examples import Example
from pipework.run_folder.engine_record import EngineRecord
from pipework.run_folder.manifest import Manifest
from pipework.run_folder.task import TaskKind
from pipework.scoring.predictions import Prediction
from pipework.serve.request.options import Terms
from pipework.serve.request.statistics import Load, Totals
from pipework.serve.request.timings import Timed
from pipework.serve.text_tensors import Answer, Texts


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A version of a model.

    Attributes:
        kind: whether it gives one label, several, or a number.
        labels: in the order of its logits.
        thresholds: of each label, where it gives several, and it was given some.
        entities: whether a text has two marked entities.
        precision: that its engine computes in.
    """

    kind: TaskKind
    labels: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    entities: bool = False
    precision: str = ""

    @classmethod
    def of(cls, manifest: Manifest, record: EngineRecord) -> "Card":
        """Return the card of a run that is answered with one of its engines."""
        return cls(
            kind=manifest.task.kind,
            labels=tuple(manifest.task.labels),
            thresholds=manifest.task.thresholds,
            entities=manifest.input.marked,
            precision=str(record.precision),
        )


class Answerer(Protocol):
    """What the doors need of one version of a model."""

    name: str
    version: str
    engine: str

    @property
    def card(self) -> Card:
        """What it says of itself."""

    @property
    def alive(self) -> bool:
        """Whether it can still answer."""

    @property
    def ready(self) -> bool:
        """Whether it answers now."""

    @property
    def load(self) -> Load:
        """How busy it is."""

    @property
    def totals(self) -> Totals:
        """What was asked of it."""

    @property
    def inputs(self) -> Sequence[str]:
        """The names of the tensors that the model takes."""

    @property
    def classes(self) -> int:
        """How many logits a text is answered with."""

    def check_room(self) -> None:
        """Check that a request would be accepted now; see `Scheduler.check_room`."""

    async def predict(
        self, examples: Sequence[Example], top_k: int | None = None, terms: Terms | None = None
    ) -> Timed[list[Prediction]]:
        """Answer each example."""

    async def answer(self, texts: Texts, terms: Terms | None = None) -> Timed[Answer]:
        """Answer texts as tensors."""

    def close(self) -> None:
        """Finish what was accepted, and free the engines. Blocks until then."""
