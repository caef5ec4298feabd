"""Interface between the load generator and the servers it measures."""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipework.benchmarks.targets.address import TargetAddress
from pipework.data.examples import Example

SERVER_TIMING = re.compile(r"([\w-]+);dur=([0-9.]+)")  # https://www.w3.org/TR/server-timing/
TEXTS_HINT = "send other texts with --file, or fewer texts per request with --batch"
URL_HINT = "expected the URL of a running server, for example one started by pipe serve RUN"


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


class StageTotals:
    """Adds up the stage times of the Server-Timing values of responses."""

    def __init__(self) -> None:
        self._requests = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, timing: str) -> None:
        """Add the stages of a response; "" if it reports none."""
        if timing:
            self._requests += 1
        for stage, milliseconds in SERVER_TIMING.findall(timing):
            self._seconds[stage] += float(milliseconds) / 1000

    @property
    def times(self) -> StageTimes:
        """The totals of all responses until now."""
        return StageTimes(requests=self._requests, seconds={**self._seconds})


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

    def stage_times(self) -> StageTimes:
        """Return the stage times that the responses reported, empty if they reported none."""

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
