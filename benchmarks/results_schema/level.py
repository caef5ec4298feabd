"""Records of stored load levels."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from pipework.record import Record


class Latency(Record):
    """Latency percentiles, mean and maximum in milliseconds; p999 is the 99.9th percentile."""

    p50: float
    p90: float
    p95: float
    p99: float
    p999: float | None = None
    mean: float
    max: float


class Histogram(Record):
    """Latency histogram: `counts[i]` latencies lie between `edges_ms[i]` and `edges_ms[i + 1]`."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


# The error kinds of a server whose queue is full, over HTTP and gRPC.
BUSY = ("HTTP 429", "RESOURCE_EXHAUSTED")


class Arrivals(StrEnum):
    """Arrival process of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"
    TRACE = "trace"


class Window(Record):
    """Measurement window of a level. `p99_ms` is None if no request succeeded in it."""

    duration_s: float
    texts_per_s: float
    p99_ms: float | None


class ServerUse(Record):
    """CPU, memory and GPU use of the server on this machine, measured after the warm-up.

    `cores` is CPU seconds per second and `peak_mib` the peak resident memory, both summed over the
    listening processes and their children (shared pages count once per process).
    `generator_cores` is CPU seconds per second of the load generator. `gpu_share` (mean
    utilisation, 0 to 1) and `gpu_mib` (maximum) cover all GPUs of the machine, including use by
    other processes; None without a GPU.
    """

    cores: float
    generator_cores: float | None = None
    peak_mib: float
    gpu_share: float | None = None
    gpu_mib: float | None = None


class Level(Record):
    """Result of one load level: a closed loop (`concurrency`) or an open loop (`rate`, `arrivals`).

    In a closed loop, each of `concurrency` clients sends its next request after the response to its
    previous request. In an open loop, requests are sent at `rate` per second, independent of
    responses.

    `requests`, `texts` and latencies cover all successful requests after the warm-up, including
    requests in flight when `duration_s` ended. Rates count only responses within `duration_s`.
    `errors` counts failed requests by kind. Latencies are None if no request succeeded. Open-loop
    latencies start at the intended send time, so that they include the delay of an overloaded
    server or generator. `late` counts requests sent more than 10 ms after the intended time.
    `refused_ms` is the latency of refusals because of a full queue, from the actual send time.

    `interval_ms` (by percentile name) and `interval_texts_per_s` are 95 % confidence intervals,
    present if there are enough requests: Student's t with `freedom` degrees of freedom, estimated
    from the variation over time (`pipework.benchmarks.stats.confidence`). `windows` are all windows
    after the warm-up; the reported figures are those of the last windows, which add up to
    `duration_s`. `stable` is true if these windows agree, None if this was not checked.
    `stages_ms` are mean stage times reported by the server. `server` is None for a server on
    another machine. `cost_per_million` is the cost of a million texts in the currency of the
    price per hour.
    """

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
    def _check_loop_kind(self) -> Self:
        if (self.concurrency is None) == (self.rate is None):
            message = "expected either concurrency or rate"
            raise ValueError(message)
        return self

    @property
    def load(self) -> float:
        """Number of clients, or rate in requests/s."""
        return self.concurrency or self.rate or 0.0

    @property
    def failed(self) -> int:
        """Number of failed requests."""
        return sum(self.errors.values())

    @property
    def refused(self) -> int:
        """Number of requests refused because the server's queue was full."""
        return sum(self.errors.get(kind, 0) for kind in BUSY)

    @property
    def goodput(self) -> float:
        """Goodput: texts/s answered within the level's duration."""
        return self.texts_per_s

    def with_cost(self, price_per_hour: float) -> Self:
        """Return a copy with the cost of a million texts at this price per hour."""
        if not self.texts_per_s:
            return self
        cost = cost_per_million(price_per_hour, self.texts_per_s)
        return self.model_copy(update={"cost_per_million": cost})


def cost_per_million(price_per_hour: float, texts_per_s: float) -> float:
    """Return the cost of a million texts at this price per hour; `texts_per_s` is positive."""
    return round(price_per_hour * 1e6 / (3600 * texts_per_s), 4)


class WorkloadSummary(Record):
    """Description of the texts sent; lengths are characters per text, or per pair of texts.

    `texts_per_request` is None if requests differ in size, as in a trace. `mean_tokens` counts
    tokens per text or pair, None without a tokenizer.
    """

    source: str
    texts: int
    texts_per_request: int | None
    pair: bool
    mean_length: float
    p95_length: float
    seed: int
    mean_tokens: float | None = None
