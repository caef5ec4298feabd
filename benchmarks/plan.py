"""Measurement plan: the texts to send, and the load levels."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil

from pipework.benchmarks.load.level import OfferedLoad
from pipework.benchmarks.load.outcome import MAX_REQUESTS
from pipework.benchmarks.load.slo import min_duration_s, min_rate
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.load.workload import MAX_WORDS, MEAN_WORDS, Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.results_schema.results import SloLimit
from pipework.data.examples import Source
from pipework.errors import ConfigError

CONCURRENCIES = (1, 2, 4, 8, 16)
MAX_CONCURRENCY = 256
MAX_RATE = 100_000
MAX_BATCH = 1024
MAX_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchPlan:
    """Measurement plan.

    Attributes:
        source: rows to send, or None for synthetic texts.
        mean_words: mean length of synthetic texts in words; lengths are log-normal.
        batch: texts per request; None means 1 for a URL, and 1, 8 and 32 for a run folder.
        concurrencies: numbers of clients, one closed-loop level each (URL only); None means 1, 2,
            4, 8 and 16, or no closed-loop levels if there are rates.
        rates: requests/s, one open-loop level each.
        arrivals: arrival process of the open-loop levels.
        trace: recorded requests, replayed once at their recorded times, or scaled to each of the
            `rates`; their level is as long as the scaled trace.
        limits: objective to check at the rates; without rates, search for the largest rate that
            meets it.
        price: price per hour of the server, in any currency.
        template: JSON request template of an endpoint that is not known.
        duration_s: seconds per level, after a warm-up of a fifth of it.
        seed: seed of the texts, their order, and random arrivals.
        command: command line that repeats the measurement, without passwords and local paths.

    Raises:
        ConfigError: a value is out of range, or values contradict each other.
    """

    source: Source | None = None
    mean_words: float = MEAN_WORDS
    batch: int | None = None
    concurrencies: tuple[int, ...] | None = None
    rates: tuple[float, ...] = ()
    arrivals: Arrivals = Arrivals.POISSON
    trace: Trace | None = None
    limits: tuple[SloLimit, ...] = ()
    price: float | None = None
    template: str | None = None
    duration_s: float = 5.0
    seed: int = 0
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        if self.concurrencies is not None and not self.concurrencies:
            message = "--concurrency: expected at least one number of clients"
            raise ConfigError(message, "for example --concurrency 1,2,4,8")
        for clients in self.concurrencies or ():
            _check("--concurrency", clients, 1, MAX_CONCURRENCY)
        if (self.arrivals is Arrivals.TRACE) is (self.trace is None):
            message = f"--arrivals {self.arrivals} cannot be combined with --trace"
            if self.trace is None:
                message = "--arrivals trace: expected --trace FILE, found none"
            raise ConfigError(message, "for example --trace requests.jsonl")
        for rate in self.rates:
            _check("--rate", rate, 0.1, MAX_RATE)
            _check("--seconds times --rate", rate * self.duration_s, 0, MAX_REQUESTS)
        _check("--batch", 1 if self.batch is None else self.batch, 1, MAX_BATCH)
        _check("--words", self.mean_words, 1, MAX_WORDS)
        _check("--seconds", self.duration_s, 0.1, MAX_SECONDS)
        _check("--price", 0 if self.price is None else self.price, 0, 1e6)
        if self.limits:
            self._check_length()
        if self.limits and self.open_loop_rates:
            self._check_requests()

    def _check_length(self) -> None:
        min_s = min_duration_s(self.limits)
        shortest_s = min(map(self._level_s, self.open_loop_rates or (1,)))
        if shortest_s < min_s:
            largest = max(self.limits, key=lambda limit: limit.most_ms)
            limit = f"{largest.statistic} <= {largest.most_ms:g} ms"
            message = (
                f"levels of {shortest_s:.4g} s are too short for {limit}: expected at least"
                f" {min_s:g} s, otherwise an overloaded server passes"
            )
            raise ConfigError(message, self._longer_hint(min_s))

    def _check_requests(self) -> None:
        rate = min(self.open_loop_rates)
        count, needed = rate * self._level_s(rate), min_rate(self.limits, 1)
        if count < needed:
            names = ", ".join(limit.statistic for limit in self.limits)
            message = (
                f"{count:,.0f} requests are too few for {names}: expected at least {needed:,.0f}"
            )
            raise ConfigError(message, self._longer_hint(needed / rate))

    def _level_s(self, rate: float) -> float:
        """Return the duration of a rate's level in seconds; a trace determines its own."""
        return self.duration_s if self.trace is None else len(self.trace.at_s) / rate

    def _longer_hint(self, seconds: float) -> str:
        if self.trace is not None:
            return "use a longer trace"
        needed = ceil(10 * seconds) / 10
        if needed > MAX_SECONDS:
            return (
                f"this needs {needed:g} s, more than the maximum of {MAX_SECONDS:g}: use a larger"
                " --rate"
            )
        return f"use --seconds {needed:g}"

    @property
    def open_loop_rates(self) -> tuple[float, ...]:
        """Rates of all open-loop levels, without a search; a trace has its own rate."""
        if self.trace is not None and not self.rates:
            return (self.trace.rate,)
        return self.rates

    @property
    def client_counts(self) -> tuple[int, ...]:
        """Number of clients of each closed-loop level."""
        if self.concurrencies is not None:
            return self.concurrencies
        return () if self.open_loop_rates else CONCURRENCIES

    @property
    def loads(self) -> tuple[OfferedLoad, ...]:
        """Loads of all levels, without a search."""
        closed = (OfferedLoad(concurrency=clients) for clients in self.client_counts)
        opened = (OfferedLoad(rate=rate, arrivals=self.arrivals) for rate in self.open_loop_rates)
        return tuple(chain(closed, opened))

    def workload(self, texts_per_request: int, *, fields: Sequence[str] = ("text",)) -> Workload:
        """Read or generate the texts.

        Raises:
            DataError: the data file cannot be read.
        """
        if self.trace is not None:
            return self.trace.workload
        if self.source is not None:
            return Workload.read(self.source, texts_per_request=texts_per_request, seed=self.seed)
        return Workload.synthetic(
            texts_per_request=texts_per_request,
            seed=self.seed,
            fields=fields,
            mean_words=self.mean_words,
        )


def _check(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        message = f"{option}: expected {low:g} to {high:g}, found {value:g}"
        raise ConfigError(message)
