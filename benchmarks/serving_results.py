"""Stored results of a server under load."""

from typing import Literal

from benchmarks.latency_results import Latency
from benchmarks.provenance import SCHEMA_VERSION, Provenance
from pipework.record import Record


class OpenLevel(Record):
    """Requests that were sent at a rate, whether those before were answered or not.

    Latencies are from the time at which a request was to be sent, so that a server (or this
    generator) which falls behind is not flattered; `late` counts requests that the generator sent
    more than 10 ms after that time. Goodput is of answered requests. `rejected_ms` is of requests
    that were answered 429, `errors` counts what else was not answered, by kind.
    """

    rate: float
    duration_s: float
    texts_per_request: int
    sent: int
    answered: int
    rejected: int
    late: int
    goodput: float
    latency_ms: Latency | None
    rejected_ms: Latency | None
    errors: dict[str, int]


class Memory(Record):
    """Resident memory of the server while texts of all lengths came, sampled once a second."""

    minutes: float
    after_first_minute_mib: float
    at_end_mib: float
    peak_mib: float


class ServingResult(Record):
    """A server under load, with its generator on the same processors.

    `offline_texts_per_s` is of the engine alone, in the server's largest batches, before and after
    the rest; `batch_ms` is the median time of one such batch. `closed` are requests of several
    and of single texts from clients that wait for their answers; `half`, `double` and `after` are
    single texts at half of their peak, at twice the peak, and at half of it again at once.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["serving"] = "serving"
    model: str
    engine: str
    texts: str
    batch_tokens: int
    offline_texts_per_s: tuple[float, float]
    batch_ms: float
    several_texts_per_s: float
    several: int
    single_texts_per_s: float
    half: OpenLevel
    double: OpenLevel
    after: OpenLevel
    memory: Memory | None
    command: tuple[str, ...]
    provenance: Provenance

    @property
    def offline(self) -> float:
        """Texts a second of the engine alone."""
        return sum(self.offline_texts_per_s) / 2
