"""A server beside others: how it is started, asked and understood."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.training_results import PIPEWORK
from pipework.benchmarks.targets.http import HttpTarget
from pipework.data.examples import Example
from pipework.git import CHECKOUT
from pipework.serve.schemas import PREDICT_PATH

HOST = "127.0.0.1"
ROOT = CHECKOUT
SERVERS = Path(__file__).parent / "servers"  # scripts that know nothing of pipework
TEXTS, NUMBER = '"$TEXTS"', '"$N"'
# What a server says of a text: its labels with their probabilities, or the best one alone.
Probabilities = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a server runs on this machine; a result holds the names of these, not the paths.

    Attributes:
        run: the run folder.
        model: the same model as transformers publishes one, with its graphs in `onnx/`.
        venvs: the folder with an environment for each peer that needs one.
        scratch: an empty folder of its own.
        port: a free one.
        cores: that it may use.
    """

    run: Path
    model: Path
    venvs: Path
    scratch: Path
    port: int
    cores: int

    def hide(self, word: str) -> str:
        """Return a word of a command without the paths of this machine."""
        named = {
            self.scratch: "SCRATCH",
            self.model: "MODEL",
            self.run: "RUN",
            self.venvs: "VENVS",
            SERVERS: "servers",
            Path(sys.prefix): "VENV",
            ROOT: "CHECKOUT",
        }
        for path, name in named.items():
            word = word.replace(str(path), name)
        return word.replace(str(self.port), "PORT")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command and the variables that it needs beside those of this process."""

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A peer with settings.

    Attributes:
        peer: as the table names it.
        settings: as the table names them.
        environment: what it runs in.
        launch: writes what it reads, and returns how it is started.
        path: of its URL, where texts are posted.
        body: JSON, in which "$TEXTS" stands for the texts and "$N" for their number.
        parse: turns the JSON of an answer into a row for each text; KeyError, TypeError,
            ValueError or IndexError where the answer is another one.
    """

    peer: str
    settings: str
    environment: Environment
    launch: Callable[[Place], Launch]
    path: str
    body: str
    parse: Callable[[Any], list[Probabilities]]

    def template(self, texts: int) -> str:
        """Return the body for so many texts, in which "$TEXTS" still stands for them."""
        return self.body.replace(NUMBER, str(texts))

    def request(self, texts: Sequence[str]) -> bytes:
        """Return the body that asks for these texts."""
        filled = self.template(len(texts)).replace(TEXTS, json.dumps(list(texts)))
        return filled.encode()


def ranked(rows: list[list[dict[str, Any]]]) -> list[Probabilities]:
    """Read what a transformers pipeline answers: for each text its labels, best first."""
    return [{str(one["label"]): float(one["score"]) for one in row} for row in rows]


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


JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTarget(HttpTarget):
    """A server that is asked by POST with JSON of its own; its answers were checked before."""

    contender: Contender

    @property
    def path(self) -> str:
        """Where it is asked."""
        return self.contender.path

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a whole request."""
        return self.post(self.contender.request([one.text for one in examples]), JSON)

    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the peer, if it answers so many texts."""
        expected = f"{count} answers"
        if len(self.contender.parse(json.loads(answer))) != count:
            raise self.wrong(expected)
        return self.contender.peer
