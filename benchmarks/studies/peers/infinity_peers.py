"""Peer infinity, a server from the package index, with its torch and its onnxruntime engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    Competitor,
    Launch,
    LaunchContext,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH, GRAPHS

NAME = "peer"


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
            launch=partial(_launch, setup),
            path="/classify",
            body=f'{{"model": "{NAME}", "input": "$TEXTS"}}',
            parse=_rows,
        )


def _launch(setup: InfinitySetup, context: LaunchContext) -> Launch:
    link_model_files(context.model, setup.graph, context.scratch)
    program = Environment.INFINITY.python(context.infinity).with_name("infinity_emb")
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


def _rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return [{str(item["label"]): float(item["score"]) for item in row} for row in response["data"]]
