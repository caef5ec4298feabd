"""A contender as a target of load."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pipework.benchmarks.studies.peers.competitor import Contender
from pipework.benchmarks.targets.http import HttpTarget
from pipework.data.examples import Example

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
