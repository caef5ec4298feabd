"""pipework's own server, started as its users start it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipework.benchmarks.results_schema.results import PIPEWORK
from pipework.benchmarks.studies.peers.competitor import (
    HOST,
    Contender,
    Launch,
    Place,
    Probabilities,
)
from pipework.benchmarks.studies.peers.environments import Environment
from pipework.git import CHECKOUT
from pipework.serve.schemas import PREDICT_PATH


def own_server() -> Iterator[Contender]:
    """Yield `pipe serve RUN`, which chooses the engine that was measured as the fastest."""
    yield Contender(
        peer=PIPEWORK,
        settings="as it starts",
        environment=Environment.OWN,
        launch=_launch,
        path=PREDICT_PATH,
        body='{"texts": "$TEXTS"}',
        parse=_rows,
    )


def _launch(place: Place) -> Launch:
    pipe = str(Path(sys.executable).with_name("pipe"))
    doors = ("--host", HOST, "--port", str(place.port), "--grpc-port", "0")
    root = str(CHECKOUT)
    return Launch(words=(pipe, "serve", str(place.run), *doors), variables={"PYTHONPATH": root})


def _rows(answer: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return [
        {str(name): float(one) for name, one in row["scores"].items()}
        for row in answer["predictions"]
    ]
