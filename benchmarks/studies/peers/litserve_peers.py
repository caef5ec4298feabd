"""Peer LitServe (https://lightning.ai/docs/litserve) with a transformers pipeline."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    SERVERS,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
    pipeline_rows,
)
from pipework.benchmarks.studies.peers.environments import Environment

WAIT_S = 0.005  # timeout for filling a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class LitServeSetup:
    """The number of workers, and the maximum number of requests merged into a batch."""

    workers: int
    batch: int

    def words(self, cores: int) -> str:
        """Return the name of the settings in the table."""
        threads = max(1, cores // self.workers)
        merged = "a request a batch" if self.batch == 1 else f"{self.batch} requests a batch"
        return f"{self.workers} worker{'s' * (self.workers > 1)} of {threads}, {merged}"


def litserve_peers(cores: int) -> Iterator[Competitor]:
    """Yield one worker and one worker per core, with single requests and with merged requests."""
    for workers in dict.fromkeys((1, cores)):
        for batch in (1, 8):
            setup = LitServeSetup(workers=workers, batch=batch)
            yield Competitor(
                peer="LitServe, transformers pipeline, torch fp32",
                settings=setup.words(cores),
                environment=Environment.LITSERVE,
                launch=partial(_launch, setup),
                path="/predict",
                body='{"texts": "$TEXTS"}',
                parse=_rows,
            )


def _launch(setup: LitServeSetup, context: LaunchContext) -> Launch:
    threads = str(max(1, context.cores // setup.workers))
    words = (
        *(str(Environment.LITSERVE.python(context.venvs)), str(SERVERS / "litserve_app.py")),
        *("--model", str(context.model), "--port", str(context.port), "--threads", threads),
        *("--workers", str(setup.workers), "--batch", str(setup.batch), "--wait-s", str(WAIT_S)),
    )
    return Launch(words=words, variables={"OMP_NUM_THREADS": threads})


def _rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return pipeline_rows(response["predictions"])
