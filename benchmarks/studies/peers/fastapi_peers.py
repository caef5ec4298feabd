"""What many put behind FastAPI: a transformers pipeline, or onnxruntime on padded batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    SERVERS,
    Contender,
    Launch,
    Place,
    Probabilities,
    ranked,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH

PATH, BODY = "/classify", '{"texts": "$TEXTS"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How work is laid out.

    Attributes:
        workers: processes, each with the model; all cores are shared among them.
        whole: whether the texts of a request are one batch; else each is computed by itself.
        in_turn: whether a worker computes one request at a time, else as many as come.
    """

    workers: int
    whole: bool
    in_turn: bool

    def words(self, cores: int) -> str:
        """Say it in the words of the table."""
        threads = max(1, cores // self.workers)
        parts = (
            f"{self.workers} worker{'s' * (self.workers > 1)} of {threads}",
            "a request a batch" if self.whole else "text by text",
            *([] if self.in_turn else ["requests at once"]),
        )
        return ", ".join(parts)


def shapes(cores: int) -> Iterator[Shape]:
    """Yield all that are sensible on so many cores."""
    yield Shape(workers=1, whole=True, in_turn=False)  # as it is when nothing is said
    for workers in dict.fromkeys((1, cores)):
        for whole in (True, False):
            yield Shape(workers=workers, whole=whole, in_turn=True)


def transformers_peers(cores: int, dtype: str) -> Iterator[Contender]:
    """Yield a pipeline of torch in float32 or bfloat16, in every shape."""
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    for shape in shapes(cores):
        yield Contender(
            peer=f"transformers pipeline, torch {short}, FastAPI",
            settings=shape.words(cores),
            environment=Environment.OWN,
            launch=partial(_launch, "transformers_app", shape, {"PEER_DTYPE": dtype}),
            path=PATH,
            body=BODY,
            parse=_pipeline_rows,
        )


def onnxruntime_peers(cores: int, precision: str) -> Iterator[Contender]:
    """Yield onnxruntime in fp32 or int8 on padded batches, in every shape."""
    for shape in shapes(cores):
        yield Contender(
            peer=f"onnxruntime {precision}, padded, FastAPI",
            settings=shape.words(cores),
            environment=Environment.OWN,
            launch=partial(_launch, "onnxruntime_app", shape, {"PEER_GRAPH": GRAPH[precision]}),
            path=PATH,
            body=BODY,
            parse=_plain_rows,
        )


def _launch(module: str, shape: Shape, model: dict[str, str], place: Place) -> Launch:
    words = (
        *(str(Environment.OWN.python(place.venvs)), "-m", "uvicorn", "--factory", f"{module}:app"),
        *("--app-dir", str(SERVERS), "--host", HOST, "--port", str(place.port)),
        *("--workers", str(shape.workers), "--no-access-log", "--log-level", "warning"),
        # A worker that opens its model does not answer the supervisor, which would replace it.
        *("--timeout-worker-healthcheck", "120"),
    )
    threads = max(1, place.cores // shape.workers)
    variables = {
        "PEER_MODEL": str(place.model),
        "PEER_THREADS": str(threads),
        "PEER_BATCH": "0" if shape.whole else "1",
        "PEER_IN_TURN": "1" if shape.in_turn else "0",
        "OMP_NUM_THREADS": str(threads),
    }
    return Launch(words=words, variables=variables | model)


def _pipeline_rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return ranked(answer["predictions"])


def _plain_rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return [{str(name): float(one) for name, one in row.items()} for row in answer["predictions"]]
