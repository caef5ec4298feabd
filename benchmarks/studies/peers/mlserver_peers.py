"""MLServer with its HuggingFace runtime (https://docs.seldon.ai/mlserver/runtimes/huggingface).

Its onnxruntime engine is not among them: the optimum that it needs does not import beside torch
2.13, and the one that does lacks what it imports.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    Contender,
    Launch,
    Place,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.serve.triton.ports import Doors

NAME = "peer"
BODY = (
    '{"inputs": [{"name": "array_inputs", "datatype": "BYTES", "shape": ["$N"], "data": "$TEXTS"}]}'
)
WAIT_S = 0.005  # for a batch to fill


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Its workers (0: all in one process) and the most requests that it merges."""

    workers: int
    batch: int

    def words(self) -> str:
        """Say it in the words of the table."""
        merged = f"{self.batch} requests a batch" if self.batch > 1 else "a request a batch"
        return f"{self.workers or 'no'} worker{'s' * (self.workers != 1)}, {merged}"


def mlserver_peers(cores: int) -> Iterator[Contender]:
    """Yield its torch pipeline in one process, with merged requests, and with workers."""
    for workers, batch in ((0, 1), (0, 8), (cores, 1)):
        shape = Shape(workers=workers, batch=batch)
        yield Contender(
            peer="MLServer, HuggingFace runtime, torch fp32",
            settings=shape.words(),
            environment=Environment.MLSERVER,
            launch=partial(_launch, shape),
            path=f"/v2/models/{NAME}/infer",
            body=BODY,
            parse=_rows,
        )


def _launch(shape: Shape, place: Place) -> Launch:
    doors = Doors(host=HOST, http=place.port).chosen()
    server = {
        "host": HOST,
        "http_port": doors.http,
        "grpc_port": doors.grpc,
        "metrics_port": doors.metrics,
        "parallel_workers": shape.workers,
        "debug": False,
    }
    model = {
        "name": NAME,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": shape.batch if shape.batch > 1 else 0,
        "max_batch_time": WAIT_S if shape.batch > 1 else 0,
        "parameters": {
            "uri": str(place.model),
            "extra": {"task": "text-classification"},
        },
    }
    (place.scratch / "settings.json").write_text(json.dumps(server), encoding="utf-8")
    (place.scratch / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    program = Environment.MLSERVER.python(place.venvs).with_name("mlserver")
    threads = max(1, place.cores // max(1, shape.workers))
    return Launch(
        words=(str(program), "start", str(place.scratch)),
        variables={"OMP_NUM_THREADS": str(threads)},
    )


def _rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    (output,) = answer["outputs"]
    found = (json.loads(one) if isinstance(one, str) else one for one in output["data"])
    return [{str(one["label"]): float(one["score"])} for one in found]
