"""Records of stored load levels."""

from enum import StrEnum
from typing import Self

from pydantic import model_validator

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


class Arrivals(StrEnum):
    """Arrival process of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"
    TRACE = "trace"


class ServerUse(Record):
    """CPU and memory use of the server on this machine, measured after the warm-up.

    `cores` is CPU seconds per second and `peak_mib` the peak resident memory, both summed over the
    listening processes and their children (shared pages count once per process).
    """

    cores: float
    peak_mib: float


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

    `generator_cores` is CPU seconds per second of the load generator after the warm-up. `server` is
    None for a server on another machine. `cost_per_million` is the cost of a million
    texts in the currency of the price per hour.
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
    latency_ms: Latency | None
    errors: dict[str, int]
    generator_cores: float | None = None
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


def cost_per_million(price_per_hour: float | None, texts_per_s: float) -> float | None:
    """Return the cost of a million texts, None without a price or a rate."""
    if price_per_hour is None or not texts_per_s:
        return None
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
