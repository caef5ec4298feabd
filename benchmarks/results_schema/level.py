"""Stored levels of load."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from pipework.run_folder.files import Record


class Latency(Record):
    """Percentiles of latencies in milliseconds; p999 is the 99.9th."""

    p50: float
    p90: float
    p95: float
    p99: float
    p999: float | None = None
    mean: float
    max: float


class Histogram(Record):
    """Counts of latencies between neighbouring edges (one edge more than counts)."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


BUSY = ("HTTP 429", "RESOURCE_EXHAUSTED")  # how a server says that it has no room, by door


class Arrivals(StrEnum):
    """When the requests of an open loop are sent."""

    POISSON = "poisson"
    CONSTANT = "constant"
    TRACE = "trace"


class Window(Record):
    """A part of a level: what was answered within it. `p99_ms` is None if nothing was."""

    duration_s: float
    texts_per_s: float
    p99_ms: float | None


class ServerUse(Record):
    """What the server used of this machine while a level ran.

    `cores` is processor time a second, `peak_mib` the largest resident memory (pages that processes
    share count for each), both of the processes that listen and their children, since the warm-up;
    `generator_cores` is the processor time a second of what asks it, which may run beside it.
    `gpu_share` (0 to 1, the mean) and `gpu_mib` (the largest) are of the GPUs of the machine,
    whoever used them; None where there is none.
    """

    cores: float
    generator_cores: float | None = None
    peak_mib: float
    gpu_share: float | None = None
    gpu_mib: float | None = None


class Level(Record):
    """One level of load: either `concurrency` clients, each sending its next request when answered
    (a closed loop), or requests at a `rate` a second, whatever happened to those before (an open
    loop), with `arrivals`.

    `requests`, `texts` and latencies are of all requests answered with success after the warm-up,
    also those in flight when `duration_s` was over. The rates count only those answered within
    `duration_s`. `errors` counts failed requests by kind. Latencies are None if none succeeded; in
    an open loop they are from the time at which a request was to be sent, so that a server (or a
    generator) that falls behind is not flattered. `late` counts requests sent more than 10 ms
    after that time. `refused_ms` is the time in which requests were refused because there was no
    room, from the sending.

    `interval_ms` are 95 % intervals of the percentiles, by their names, and `interval_texts_per_s`
    is that of the rate, where there are requests enough for one: Student's with `freedom` degrees
    of freedom, from how the level went over time (`pipework.benchmarks.stats.confidence`). `windows` are all since the
    warm-up; what is reported is of the last of them, which together are `duration_s` long. `stable`
    says whether these agree, None if nobody looked. `stages_ms` are the mean times by the server's
    own clock. `server` is None for a server on another machine. `cost_per_million` is of so many
    texts, in the unit of the price that was given for an hour.
    """  # noqa: D205  (one sentence)

    concurrency: int | None = None
    rate: float | None = None
    arrivals: Arrivals | None = None
    texts_per_request: int | None
    duration_s: float
    sent: int = 0
    late: int = 0
    requests: int
    texts: int
    texts_per_s: float
    requests_per_s: float
    tokens_per_s: float | None = None
    latency_ms: Latency | None
    interval_ms: dict[str, tuple[float, float]] = Field(default_factory=dict)
    interval_texts_per_s: tuple[float, float] | None = None
    freedom: int | None = None
    histogram: Histogram | None
    refused_ms: Latency | None = None
    errors: dict[str, int]
    windows: tuple[Window, ...] = ()
    stable: bool | None = None
    stages_ms: dict[str, float] = Field(default_factory=dict)
    server: ServerUse | None = None
    cost_per_million: float | None = None

    @model_validator(mode="after")
    def _one_loop(self) -> Self:
        if (self.concurrency is None) == (self.rate is None):
            message = "expected either concurrency or rate"
            raise ValueError(message)
        return self

    @property
    def load(self) -> float:
        """The number of clients, or the rate in requests a second."""
        return self.concurrency or self.rate or 0.0

    @property
    def failed(self) -> int:
        """Number of failed requests."""
        return sum(self.errors.values())

    @property
    def refused(self) -> int:
        """Number of requests that the server had no room for."""
        return sum(self.errors.get(kind, 0) for kind in BUSY)

    @property
    def in_time(self) -> float:
        """Texts a second that were answered within the level: its goodput."""
        return self.texts_per_s

    def costing(self, price_per_hour: float) -> Self:
        """Return it with what a million texts cost on a machine of this price, at this rate."""
        if not self.texts_per_s:
            return self
        cost = cost_per_million(price_per_hour, self.texts_per_s)
        return self.model_copy(update={"cost_per_million": cost})


def cost_per_million(price_per_hour: float, texts_per_s: float) -> float:
    """Return what a million texts cost on a machine of this price, at this rate above 0."""
    return round(price_per_hour * 1e6 / (3600 * texts_per_s), 4)


class WorkloadSummary(Record):
    """What was sent; lengths are of a text, or of both texts of a pair, in characters.

    `texts_per_request` is None where it changes from request to request, as in a trace.
    `mean_tokens` are of a text or a pair, None where no tokenizer was given.
    """

    source: str
    texts: int
    texts_per_request: int | None
    pair: bool
    mean_length: float
    p95_length: float
    seed: int
    mean_tokens: float | None = None
