"""The interface of a compared server: how it is started, its requests and its responses."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipework.benchmarks.studies.peers.environments import Environment
from pipework.benchmarks.studies.records.training_results import PIPEWORK
from pipework.benchmarks.targets.http import HttpTarget
from pipework.data.examples import Example
from pipework.git import CHECKOUT
from pipework.wire.schemas import PREDICT_PATH

HOST = "127.0.0.1"
SERVERS = Path(__file__).parent / "servers"  # scripts that do not import pipework
TEXTS, NUMBER = '"$TEXTS"', '"$N"'
# The prediction for one text: probability by label, for all labels or only the best.
Probabilities = dict[str, float]
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchContext:
    """The paths, port and cores with which a server is started.

    Attributes:
        model: the same model in the layout of transformers, with ONNX graphs in `onnx/`.
        scratch: an empty folder for the server.
    """

    run: Path
    model: Path
    infinity: Path
    cores: int
    scratch: Path = Path()
    port: int = 0

    def hide(self, text: str) -> str:
        """Return a text without the paths of this machine."""
        for path in (self.scratch, self.model, self.run, self.infinity, CHECKOUT):
            text = text.replace(str(path), path.name)
        return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command and the environment variables that it adds to this process's."""

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Competitor:
    """A peer with settings.

    Attributes:
        peer: name of the server in the table.
        settings: name of the settings in the table.
        launch: writes the server's files and returns its command.
        path: URL path of its inference endpoint.
        body: JSON template in which "$TEXTS" is replaced by the texts and "$N" by their number.
        parse: converts the JSON of a response to one prediction per text; raises KeyError,
            TypeError, ValueError or IndexError if the response has another format.
    """

    peer: str
    settings: str
    environment: Environment
    launch: Callable[[LaunchContext], Launch]
    path: str
    body: str
    parse: Callable[[Any], list[Probabilities]]

    def template(self, texts: int) -> str:
        """Return the body for a number of texts, with "$TEXTS" not yet replaced."""
        return self.body.replace(NUMBER, str(texts))

    def request(self, texts: Sequence[str]) -> bytes:
        """Return the body of a request with these texts."""
        filled = self.template(len(texts)).replace(TEXTS, json.dumps(list(texts)))
        return filled.encode()


def own_server() -> Iterator[Competitor]:
    """Yield `pipe serve RUN`, which selects the engine with the highest measured speed."""
    yield Competitor(
        peer=PIPEWORK,
        settings="as it starts",
        environment=Environment.OWN,
        launch=_launch,
        path=PREDICT_PATH,
        body='{"texts": "$TEXTS"}',
        parse=_rows,
    )


def _launch(context: LaunchContext) -> Launch:
    pipe = str(Path(sys.executable).with_name("pipe"))
    ports = ("--host", HOST, "--port", str(context.port), "--grpc-port", "0")
    root = str(CHECKOUT)
    return Launch(words=(pipe, "serve", str(context.run), *ports), variables={"PYTHONPATH": root})


def _rows(response: Any) -> list[Probabilities]:  # noqa: ANN401  (JSON)
    return [
        {str(name): float(score) for name, score in row["scores"].items()}
        for row in response["predictions"]
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTarget(HttpTarget):
    """A server with an HTTP POST endpoint and its own JSON format, checked before."""

    competitor: Competitor

    @property
    def path(self) -> str:
        """The URL path of its inference endpoint."""
        return self.competitor.path

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a whole HTTP request."""
        return self.post(self.competitor.request([example.text for example in examples]), JSON)

    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the peer if the response has the expected number of predictions."""
        expected = f"{count} predictions"
        if len(self.competitor.parse(json.loads(answer))) != count:
            raise self.unexpected_response(expected)
        return self.competitor.peer
