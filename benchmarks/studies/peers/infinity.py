"""infinity (https://github.com/michaelfeil/infinity), its torch and its onnxruntime engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    Contender,
    Launch,
    Place,
    Probabilities,
    ranked,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.peers.model_folder import GRAPH, GRAPHS

NAME = "peer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """An engine of infinity with its largest batch, its arithmetic, and the graph that it opens."""

    engine: str
    batch: int
    dtype: str
    graph: str = GRAPH["fp32"]

    def words(self) -> str:
        """Say it in the words of the table."""
        dtype = self.dtype if self.graph == GRAPH["fp32"] else "int8"
        return f"batches of {self.batch}, {dtype}"


def infinity_peers() -> Iterator[Contender]:
    """Yield both engines with batches of 32, infinity's default, and of 8; bf16 and int8 too."""
    names = {"torch": "torch", "optimum": "onnxruntime"}
    for shape in (
        Shape(engine="torch", batch=32, dtype="float32"),
        Shape(engine="torch", batch=8, dtype="float32"),
        Shape(engine="torch", batch=32, dtype="bfloat16"),
        Shape(engine="optimum", batch=32, dtype="float32"),
        Shape(engine="optimum", batch=8, dtype="float32"),
        Shape(engine="optimum", batch=32, dtype="float32", graph=GRAPH["int8"]),
        Shape(engine="optimum", batch=8, dtype="float32", graph=GRAPH["int8"]),
    ):
        yield Contender(
            peer=f"infinity, {names[shape.engine]}",
            settings=shape.words(),
            environment=Environment.INFINITY,
            launch=partial(_launch, shape),
            path="/classify",
            body=f'{{"model": "{NAME}", "input": "$TEXTS"}}',
            parse=_rows,
        )


def _launch(shape: Shape, place: Place) -> Launch:
    link(place.model, shape.graph, place.scratch)
    program = Environment.INFINITY.python(place.venvs).with_name("infinity_emb")
    words = (
        *(str(program), "v2", "--model-id", ".", "--served-model-name", NAME),
        *("--engine", shape.engine, "--device", "cpu", "--dtype", shape.dtype),
        *("--batch-size", str(shape.batch), "--no-bettertransformer"),
        # Its onnxruntime engine does not cut texts, those of its own warm-up neither, and ends.
        *(("--no-model-warmup",) if shape.engine == "optimum" else ()),
        *("--host", HOST, "--port", str(place.port), "--log-level", "warning"),
    )
    variables = {
        "DO_NOT_TRACK": "1",
        "HF_HOME": str(place.scratch / "home"),  # where it keeps graphs that it has optimised
        "OMP_NUM_THREADS": str(place.cores),
    }
    return Launch(words=words, variables=variables)


def link(model: Path, graph: str, folder: Path) -> None:
    """Show the files of a model with one of its graphs in one folder, where it is opened as ".".

    The optimum that it runs with finds no graph by an absolute path, nor below another folder.
    """
    for path in filter(Path.is_file, model.iterdir()):
        (folder / path.name).symlink_to(path)
    (folder / graph).symlink_to(model / GRAPHS / graph)


def _rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return ranked(answer["data"])
