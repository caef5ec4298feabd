"""Interface between the load generator and the servers it measures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pipework.data.examples import Example


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Stage times reported by a server: total seconds per stage over `requests` requests."""

    requests: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def mean_ms_since(self, before: "StageTimes") -> dict[str, float]:
        """Return the mean milliseconds per stage since `before`; empty without new requests."""
        requests = self.requests - before.requests
        if not requests:
            return {}
        return {
            stage: 1000 * (seconds - before.seconds.get(stage, 0.0)) / requests
            for stage, seconds in self.seconds.items()
        }


class WireProtocol(StrEnum):
    """Protocol that carries the requests."""

    HTTP = "http"
    GRPC = "grpc"


class Caller(Protocol):
    """Connections to a server; usable only in the event loop that opened them."""

    async def send(self, request: bytes) -> str | None:
        """Send a request and wait; return None on success, else the kind of error.

        Error kinds are few and contain no details: "HTTP 429", "UNAVAILABLE", "no connection",
        "connection dropped", "TLS failed".
        """

    async def fetch(self, request: bytes) -> bytes:
        """Send a request and return the response body; used for the first request.

        Raises:
            PipeError: no server responds, or it refuses the request; the message has the reason.
        """

    async def stage_times(self) -> StageTimes:
        """Return the stage times reported by the server, empty if it reports none."""

    async def close(self) -> None:
        """Close the connections."""


class Target(Protocol):
    """Server that classifies texts; its requests are serialised before the load starts."""

    @property
    def wire_protocol(self) -> WireProtocol:
        """Protocol of its requests."""

    @property
    def display_url(self) -> str:
        """URL without credentials, for messages and results."""

    @property
    def host(self) -> str:
        """Host name or IP address."""

    @property
    def port(self) -> int:
        """Port number."""

    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a complete serialised request."""

    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts.

        Raises:
            PipeError: the response does not contain `count` results.
        """

    def at_local_port(self, port: int) -> "Target":
        """Return a target with the same requests at a port of this machine, without TLS."""

    def open(self, connections: int) -> Caller:
        """Return a caller with at most this many connections; needs a running event loop."""
