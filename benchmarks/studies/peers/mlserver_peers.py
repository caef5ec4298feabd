"""Peer MLServer with its HuggingFace runtime (https://docs.seldon.ai/mlserver/runtimes/huggingface).

Its onnxruntime engine is not included: the version of optimum that it needs cannot be imported with
torch 2.13.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.serve.triton.ports import Ports

NAME = "peer"
BODY = (
    '{"inputs": [{"name": "array_inputs", "datatype": "BYTES", "shape": ["$N"], "data": "$TEXTS"}]}'
)
WAIT_S = 0.005  # timeout for filling a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class MLServerSetup:
    """The number of workers (0: one process) and the maximum number of merged requests."""

    workers: int
    batch: int

    def words(self) -> str:
        """Return the name of the settings in the table."""
        merged = f"{self.batch} requests a batch" if self.batch > 1 else "a request a batch"
        return f"{self.workers or 'no'} worker{'s' * (self.workers != 1)}, {merged}"


def mlserver_peers(cores: int) -> Iterator[Competitor]:
    """Yield its torch pipeline in one process, with merged requests, and with workers."""
    for workers, batch in ((0, 1), (0, 8), (cores, 1)):
        setup = MLServerSetup(workers=workers, batch=batch)
        yield Competitor(
            peer="MLServer, HuggingFace runtime, torch fp32",
            settings=setup.words(),
            environment=Environment.MLSERVER,
            launch=partial(_launch, setup),
            path=f"/v2/models/{NAME}/infer",
            body=BODY,
            parse=_rows,
        )


def _launch(setup: MLServerSetup, context: LaunchContext) -> Launch:
    ports = Ports(host=HOST, http=context.port).chosen()
    server = {
        "host": HOST,
        "http_port": ports.http,
        "grpc_port": ports.grpc,
        "metrics_port": ports.metrics,
        "parallel_workers": setup.workers,
        "debug": False,
    }
    model = {
        "name": NAME,
        "implementation": "mlserver_huggingface.HuggingFaceRuntime",
        "max_batch_size": setup.batch if setup.batch > 1 else 0,
        "max_batch_time": WAIT_S if setup.batch > 1 else 0,
        "parameters": {
            "uri": str(context.model),
            "extra": {"task": "text-classification"},
        },
    }
    (context.scratch / "settings.json").write_text(json.dumps(server), encoding="utf-8")
    (context.scratch / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    program = Environment.MLSERVER.python(context.venvs).with_name("mlserver")
    threads = max(1, context.cores // max(1, setup.workers))
    return Launch(
        words=(str(program), "start", str(context.scratch)),
        variables={"OMP_NUM_THREADS": str(threads)},
    )


def _rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    (output,) = response["outputs"]
    rows = (json.loads(row) if isinstance(row, str) else row for row in output["data"])
    return [{str(row["label"]): float(row["score"])} for row in rows]
