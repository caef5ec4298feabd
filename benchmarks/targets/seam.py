"""Interface between the load generator and the servers it measures."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipework.benchmarks.targets.address import TargetAddress
from pipework.data.examples import Example

TEXTS_HINT = "send other texts with --file, or fewer texts per request with --batch"
URL_HINT = "expected the URL of a running server, for example one started by pipe serve RUN"


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

    async def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target(ABC):
    """Server that classifies texts; its requests are serialised before the load starts."""

    address: TargetAddress

    @property
    def display_url(self) -> str:
        """URL without credentials, for messages and results."""
        return self.address.display_url

    @abstractmethod
    def request(self, examples: Sequence[Example]) -> bytes:
        """Return a complete serialised request."""

    @abstractmethod
    def check(self, response: bytes, count: int) -> str:
        """Return the model name of a response to `count` texts.

        Raises:
            PipeError: the response does not contain `count` results.
        """

    @abstractmethod
    def open(self, connections: int) -> Caller:
        """Return a caller with at most this many connections; needs a running event loop."""
