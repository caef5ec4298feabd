"""Peers with FastAPI: a transformers pipeline, or onnxruntime on padded batches."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    SERVERS,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH


@dataclass(frozen=True, kw_only=True, slots=True)
class FastApiSetup:
    """How a server divides its work.

    Attributes:
        workers: number of processes, each with the model; they share all cores.
        whole: whether the texts of a request form one batch; else each text is computed alone.
        in_turn: whether a worker computes one request at a time; else requests run concurrently.
    """

    workers: int
    whole: bool
    in_turn: bool

    def words(self, cores: int) -> str:
        """Return the name of the settings in the table."""
        threads = max(1, cores // self.workers)
        parts = (
            f"{self.workers} worker{'s' * (self.workers > 1)} of {threads}",
            "a request a batch" if self.whole else "text by text",
            *([] if self.in_turn else ["requests at once"]),
        )
        return ", ".join(parts)


def fastapi_setups(cores: int) -> Iterator[FastApiSetup]:
    """Yield all sensible setups for a number of cores."""
    yield FastApiSetup(workers=1, whole=True, in_turn=False)  # the defaults
    for workers in dict.fromkeys((1, cores)):
        for whole in (True, False):
            yield FastApiSetup(workers=workers, whole=whole, in_turn=True)


def transformers_peers(cores: int, dtype: str) -> Iterator[Competitor]:
    """Yield a torch pipeline in float32 or bfloat16 with every setup."""
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    name = f"transformers pipeline, torch {short}, FastAPI"
    return _peers(name, cores, {"PEER_DTYPE": dtype})


def onnxruntime_peers(cores: int, precision: str) -> Iterator[Competitor]:
    """Yield onnxruntime in fp32 or int8 on padded batches with every setup."""
    name = f"onnxruntime {precision}, padded, FastAPI"
    return _peers(name, cores, {"PEER_GRAPH": GRAPH[precision]})


def _peers(name: str, cores: int, model: dict[str, str]) -> Iterator[Competitor]:
    for setup in fastapi_setups(cores):
        yield Competitor(
            peer=name,
            settings=setup.words(cores),
            environment=Environment.OWN,
            launch=partial(_launch, setup, model),
            path="/classify",
            body='{"texts": "$TEXTS"}',
            parse=_rows,
        )


def _launch(setup: FastApiSetup, model: dict[str, str], context: LaunchContext) -> Launch:
    words = (
        *(sys.executable, "-m", "uvicorn", "--factory", "fastapi_app:app"),
        *("--app-dir", str(SERVERS), "--host", HOST, "--port", str(context.port)),
        *("--workers", str(setup.workers), "--no-access-log", "--log-level", "warning"),
        # While a worker loads its model it does not respond to the supervisor, which would kill it.
        *("--timeout-worker-healthcheck", "120"),
    )
    threads = max(1, context.cores // setup.workers)
    variables = {
        "PEER_MODEL": str(context.model),
        "PEER_THREADS": str(threads),
        "PEER_BATCH": "0" if setup.whole else "1",
        "PEER_IN_TURN": "1" if setup.in_turn else "0",
        "OMP_NUM_THREADS": str(threads),
    }
    return Launch(words=words, variables=variables | model)


def _rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return [
        {str(name): float(score) for name, score in row.items()} for row in response["predictions"]
    ]
