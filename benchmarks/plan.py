"""How to measure: what is sent, and at which levels of load."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil

from pipework.benchmarks.load.level import Driven
from pipework.benchmarks.load.outcome import MAX_REQUESTS
from pipework.benchmarks.load.slo import least_rate, least_s
from pipework.benchmarks.load.trace import Trace
from pipework.benchmarks.load.workload import MAX_WORDS, MEAN_WORDS, Workload
from pipework.benchmarks.results_schema.level import Arrivals
from pipework.benchmarks.results_schema.slo import Limit
from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import ConfigError

CONCURRENCIES = (1, 2, 4, 8, 16)
MAX_CONCURRENCY = 256
MAX_RATE = 100_000
MAX_BATCH = 1024
MAX_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """The server that a target takes turns with: its URL, the price of its hour, its template."""

    url: str
    price: float | None = None
    template: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How to measure.

    Attributes:
        source: rows to send, or None for synthetic texts.
        mean_words: of synthetic texts, whose lengths are log-normal.
        batch: texts per request; None means 1 for a URL, and 1, 8 and 32 in a run folder.
        concurrencies: numbers of clients, one closed-loop level each (a URL only); None means 1, 2,
            4, 8 and 16, or none where rates are asked for.
        rates: requests a second, one open-loop level each.
        arrivals: when the requests of a rate are sent; those of a trace as they were recorded.
        trace: recorded requests, sent once at their own times, or as much faster or slower as it
            takes for each of the `rates`. They last as long as they do.
        limits: an objective, held against the rates, or with no rates searched for the largest.
        price: of an hour of the server, in any currency.
        template: of the JSON that a server wants to hear which is none of those that are known.
        duration_s: seconds per level, after a warm-up of a fifth of that.
        seed: decides the texts and their order, and random arrivals.

    Raises:
        ConfigError: a value outside what is sensible.
    """

    source: Source | None = None
    mean_words: float = MEAN_WORDS
    batch: int | None = None
    concurrencies: tuple[int, ...] | None = None
    rates: tuple[float, ...] = ()
    arrivals: Arrivals = Arrivals.POISSON
    trace: Trace | None = None
    limits: tuple[Limit, ...] = ()
    price: float | None = None
    template: str | None = None
    duration_s: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the limits that keep a run bounded."""
        if self.concurrencies is not None and not self.concurrencies:
            message = "--concurrency: expected at least one number of clients"
            raise ConfigError(message, "for example --concurrency 1,2,4,8")
        for clients in self.concurrencies or ():
            _check("--concurrency", clients, 1, MAX_CONCURRENCY)
        if (self.arrivals is Arrivals.TRACE) is (self.trace is None):
            message = f"--arrivals {self.arrivals} and a --trace exclude each other"
            if self.trace is None:
                message = "--arrivals trace: expected a --trace that says when, found none"
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
        if self.limits and self.sent_rates:
            self._check_requests()

    def _check_length(self) -> None:
        least, shortest = least_s(self.limits), min(map(self._seconds, self.sent_rates or (1,)))
        if shortest < least:
            longest = max(self.limits, key=lambda one: one.most_ms)
            limit = f"{longest.statistic} of at most {longest.most_ms / 1000:g} s"
            message = (
                f"levels of {shortest:.4g} s are too short for {limit}: a server that falls behind"
                f" would look well, expected {least:g} s"
            )
            raise ConfigError(message, self._longer(least))

    def _check_requests(self) -> None:
        given = min(self.sent_rates)
        sent, needed = given * self._seconds(given), least_rate(self.limits, 1)
        if sent < needed:
            names = ", ".join(one.statistic for one in self.limits)
            message = f"{sent:,.0f} requests are too few for {names}: expected {needed:,.0f}"
            raise ConfigError(message, self._longer(needed / given))

    def _seconds(self, rate: float) -> float:
        """Return how long the level of a rate lasts: a trace is as long as its requests are."""
        return self.duration_s if self.trace is None else len(self.trace.at_s) / rate

    def _longer(self, seconds: float) -> str:
        if self.trace is not None:
            return "measure longer: a longer trace"
        needed = ceil(10 * seconds) / 10
        if needed > MAX_SECONDS:
            return f"that takes {needed:g} s, and {MAX_SECONDS:g} are allowed: take a larger --rate"
        return f"measure longer: --seconds {needed:g}"

    @property
    def sent_rates(self) -> tuple[float, ...]:
        """The rates of all open-loop levels, but those of a search: a trace has one of its own."""
        if self.trace is not None and not self.rates:
            return (self.trace.rate,)
        return self.rates

    @property
    def closed(self) -> tuple[int, ...]:
        """The numbers of clients."""
        if self.concurrencies is not None:
            return self.concurrencies
        return () if self.sent_rates else CONCURRENCIES

    @property
    def loads(self) -> tuple[Driven, ...]:
        """All levels of load, but those of a search."""
        closed = (Driven(concurrency=clients) for clients in self.closed)
        opened = (Driven(rate=rate, arrivals=self.arrivals) for rate in self.sent_rates)
        return tuple(chain(closed, opened))

    def workload(self, texts_per_request: int, *, fields: Sequence[str] = ("text",)) -> Workload:
        """Read or make the texts.

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

    def command(self, target: str, rival: Rival | None = None) -> tuple[str, ...]:
        """Return the command line that repeats this, without a path of this machine."""
        words = ["pipe", "bench", target]
        if rival is not None:
            words += ["--against", rival.url]
        if self.source is not None:
            words += ["--file", self.source.path.name, "--columns", _columns(self.source.columns)]
        elif self.mean_words != MEAN_WORDS:
            words += ["--words", f"{self.mean_words:g}"]
        if self.batch is not None:
            words += ["--batch", str(self.batch)]
        if target.partition("://")[1]:
            words += self._of_a_server(rival)
        timed = self.trace is None or bool(self.closed)
        return (*words, *(("--seconds", f"{self.duration_s:g}") if timed else ()))

    def _of_a_server(self, rival: Rival | None) -> list[str]:
        words = []
        if self.closed:
            words += ["--concurrency", ",".join(map(str, self.closed))]
        if self.trace is not None:
            words += ["--trace", self.trace.path.name]
        if self.rates:
            words += ["--rate", ",".join(f"{rate:g}" for rate in self.rates)]
        if (self.rates or self.limits) and self.arrivals is Arrivals.CONSTANT:
            words += ["--arrivals", self.arrivals]
        for limit in self.limits:
            words += ["--slo", f"{limit.statistic}={limit.most_ms:g}ms"]
        prices = [self.price, *([] if rival is None else [rival.price])]
        templates = [self.template, *([] if rival is None else [rival.template])]
        words += _each("--price", [None if one is None else f"{one:g}" for one in prices])
        return words + _each("--template", templates)


def _each(option: str, values: Sequence[str | None]) -> list[str]:
    """Return an option once where it is the same for both servers."""
    return [
        word for value in dict.fromkeys(values) if value is not None for word in (option, value)
    ]


def _columns(columns: Columns) -> str:
    pair = "" if columns.text_pair is None else f",text_pair={columns.text_pair}"
    return f"text={columns.text}{pair}"


def _check(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        message = f"{option}: expected {low:g} to {high:g}, found {value:g}"
        raise ConfigError(message)
