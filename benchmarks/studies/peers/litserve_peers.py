"""LitServe (https://lightning.ai/docs/litserve) around a transformers pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    SERVERS,
    Contender,
    Launch,
    Place,
    Probabilities,
    ranked,
)
from pipework.benchmarks.studies.peers.environments import Environment

WAIT_S = 0.005  # for a batch to fill


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Its workers, and the most requests that it merges."""

    workers: int
    batch: int

    def words(self, cores: int) -> str:
        """Say it in the words of the table."""
        threads = max(1, cores // self.workers)
        merged = "a request a batch" if self.batch == 1 else f"{self.batch} requests a batch"
        return f"{self.workers} worker{'s' * (self.workers > 1)} of {threads}, {merged}"


def litserve_peers(cores: int) -> Iterator[Contender]:
    """Yield one worker and one a core, with requests one by one and merged."""
    for workers in dict.fromkeys((1, cores)):
        for batch in (1, 8):
            shape = Shape(workers=workers, batch=batch)
            yield Contender(
                peer="LitServe, transformers pipeline, torch fp32",
                settings=shape.words(cores),
                environment=Environment.LITSERVE,
                launch=partial(_launch, shape),
                path="/predict",
                body='{"texts": "$TEXTS"}',
                parse=_rows,
            )


def _launch(shape: Shape, place: Place) -> Launch:
    threads = str(max(1, place.cores // shape.workers))
    words = (
        *(str(Environment.LITSERVE.python(place.venvs)), str(SERVERS / "litserve_app.py")),
        *("--model", str(place.model), "--port", str(place.port), "--threads", threads),
        *("--workers", str(shape.workers), "--batch", str(shape.batch), "--wait-s", str(WAIT_S)),
    )
    return Launch(words=words, variables={"OMP_NUM_THREADS": threads})


def _rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return ranked(answer["predictions"])
