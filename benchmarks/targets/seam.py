"""The seam between load and what it is sent to. Every server that answers texts fits behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pipework.data.examples import Example


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """What a server says of its time: seconds by stage, of all these requests together."""

    requests: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def since(self, before: "Spent") -> dict[str, float]:
        """Return the mean milliseconds of each stage since then; empty if nothing was answered."""
        requests = self.requests - before.requests
        if not requests:
            return {}
        return {
            stage: 1000 * (seconds - before.seconds.get(stage, 0.0)) / requests
            for stage, seconds in self.seconds.items()
        }


class Wire(StrEnum):
    """What requests are made of."""

    HTTP = "http"
    GRPC = "grpc"


class Caller(Protocol):
    """Connections to a server. It belongs to the event loop that opened it."""

    async def ask(self, request: bytes) -> str | None:
        """Send a request; return None once it is answered with success, else the kind of error.

        Kinds are few, and the same for all requests that fail alike: "HTTP 429", "UNAVAILABLE",
        "no connection", "connection dropped", "TLS failed".
        """

    async def answer(self, request: bytes) -> bytes:
        """Send a request and return the answer, for the first one, which is looked at.

        Raises:
            PipeError: no server, or one that refuses; the message says why.
        """

    async def spent(self) -> Spent:
        """Return what the server has said of its time; nothing where it does not."""

    async def close(self) -> None:
        """Close the connections."""


class Target(Protocol):
    """A server that answers texts. One request is bytes, made before the load begins."""

    @property
    def wire(self) -> Wire:
        """What its requests are made of."""

    @property
    def shown(self) -> str:
        """The URL for results: without a password."""

    @property
    def host(self) -> str:
        """Where it listens: a name or an address."""

    @property
    def port(self) -> int:
        """Where it listens."""

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a whole request, ready to be sent."""

    def check(self, answer: bytes, count: int) -> str:
        """Return the name of the model that gave an answer to `count` texts.

        Raises:
            PipeError: it is not an answer to so many.
        """

    def beside(self, port: int) -> "Target":
        """Return a target of the same requests that listens on this machine, without TLS."""

    def open(self, connections: int) -> Caller:
        """Return a caller of at most so many connections, within a running event loop."""
