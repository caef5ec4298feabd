"""What the doors need of one version of a model."""

from collections.abc import Sequence
from typing import Protocol

from pipework.data.examples import Example
from pipework.scoring.predictions import Prediction
from pipework.serve.request.options import Terms
from pipework.serve.request.statistics import Load, Totals
from pipework.serve.request.timings import Timed
from pipework.serve.scheduling.model_card import Card
from pipework.serve.text_tensors import Answer, Texts


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
