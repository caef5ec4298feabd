"""Peers that are servers from the package index: Infinity, LitServe and MLServer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    SERVERS,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
    pipeline_rows,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH, GRAPHS
from pipework.serve.triton.server import Ports

NAME = "peer"
WAIT_S = 0.005  # timeout for filling a batch


@dataclass(frozen=True, kw_only=True, slots=True)
class InfinitySetup:
    """An engine of infinity with its maximum batch size, its data type and its graph."""

    engine: str
    batch: int
    dtype: str
    graph: str = GRAPH["fp32"]

    def words(self) -> str:
        """Return the name of the settings in the table."""
        dtype = self.dtype if self.graph == GRAPH["fp32"] else "int8"
        return f"batches of {self.batch}, {dtype}"


def infinity_peers() -> Iterator[Competitor]:
    """Yield both engines with batches of 32, the default, and of 8; also in bf16 and int8."""
    names = {"torch": "torch", "optimum": "onnxruntime"}
    for setup in (
        InfinitySetup(engine="torch", batch=32, dtype="float32"),
        InfinitySetup(engine="torch", batch=8, dtype="float32"),
        InfinitySetup(engine="torch", batch=32, dtype="bfloat16"),
        InfinitySetup(engine="optimum", batch=32, dtype="float32"),
        InfinitySetup(engine="optimum", batch=8, dtype="float32"),
        InfinitySetup(engine="optimum", batch=32, dtype="float32", graph=GRAPH["int8"]),
        InfinitySetup(engine="optimum", batch=8, dtype="float32", graph=GRAPH["int8"]),
    ):
        yield Competitor(
            peer=f"infinity, {names[setup.engine]}",
            settings=setup.words(),
            environment=Environment.INFINITY,
            launch=partial(_launch_infinity, setup),
            path="/classify",
            body=f'{{"model": "{NAME}", "input": "$TEXTS"}}',
            parse=_infinity_rows,
        )


def _launch_infinity(setup: InfinitySetup, context: LaunchContext) -> Launch:
    link_model_files(context.model, setup.graph, context.scratch)
    program = Environment.INFINITY.python(context.venvs).with_name("infinity_emb")
    words = (
        *(str(program), "v2", "--model-id", ".", "--served-model-name", NAME),
        *("--engine", setup.engine, "--device", "cpu", "--dtype", setup.dtype),
        *("--batch-size", str(setup.batch), "--no-bettertransformer"),
        # Its onnxruntime engine does not truncate texts and would fail in its own warm-up.
        *(("--no-model-warmup",) if setup.engine == "optimum" else ()),
        *("--host", HOST, "--port", str(context.port), "--log-level", "warning"),
    )
    variables = {
        "DO_NOT_TRACK": "1",
        "HF_HOME": str(context.scratch / "home"),  # its cache of optimised graphs
        "OMP_NUM_THREADS": str(context.cores),
    }
    return Launch(words=words, variables=variables)


def link_model_files(model: Path, graph: str, folder: Path) -> None:
    """Link a model's files and one of its graphs into one folder, which is opened as ".".

    The version of optimum that infinity uses finds no graph by an absolute path or in a subfolder.
    """
    for path in filter(Path.is_file, model.iterdir()):
        (folder / path.name).symlink_to(path)
    (folder / graph).symlink_to(model / GRAPHS / graph)


def _infinity_rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return pipeline_rows(response["data"])


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
                launch=partial(_launch_litserve, setup),
                path="/predict",
                body='{"texts": "$TEXTS"}',
                parse=_litserve_rows,
            )


def _launch_litserve(setup: LitServeSetup, context: LaunchContext) -> Launch:
    threads = str(max(1, context.cores // setup.workers))
    words = (
        *(str(Environment.LITSERVE.python(context.venvs)), str(SERVERS / "litserve_app.py")),
        *("--model", str(context.model), "--port", str(context.port), "--threads", threads),
        *("--workers", str(setup.workers), "--batch", str(setup.batch), "--wait-s", str(WAIT_S)),
    )
    return Launch(words=words, variables={"OMP_NUM_THREADS": threads})


def _litserve_rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return pipeline_rows(response["predictions"])


BODY = (
    '{"inputs": [{"name": "array_inputs", "datatype": "BYTES", "shape": ["$N"], "data": "$TEXTS"}]}'
)


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
            launch=partial(_launch_mlserver, setup),
            path=f"/v2/models/{NAME}/infer",
            body=BODY,
            parse=_mlserver_rows,
        )


def _launch_mlserver(setup: MLServerSetup, context: LaunchContext) -> Launch:
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


def _mlserver_rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    (output,) = response["outputs"]
    rows = (json.loads(row) if isinstance(row, str) else row for row in output["data"])
    return [{str(row["label"]): float(row["score"])} for row in rows]
