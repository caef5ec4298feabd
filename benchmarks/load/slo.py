"""Service level objectives: parsing of `--slo` and judgement of load levels."""

import re
from collections.abc import Iterable, Sequence
from math import sqrt

from pipework.benchmarks.results_schema.level import Arrivals, Latency, Level
from pipework.benchmarks.results_schema.results import RateTrial, SloLimit, SloResult, Statistic
from pipework.errors import CheckFailedError, ConfigError

LIMIT_PATTERN = re.compile(r"(?P<name>[a-z]+[\d.]*) *= *(?P<value>\d+(\.\d+)?) *(?P<unit>ms|s)")
MS = {"ms": 1.0, "s": 1000.0}
# Beyond these shares of requests a rate misses the objective, whatever its latency.
MAX_FAILED_SHARE = 0.001
MAX_LATE_SHARE = 0.01
MIN_ANSWERED_SHARE = 0.95
# A level is at least this many times as long as the largest limit, so that its warm-up (a fifth of
# it) is no shorter than the limit. After such a warm-up a server that keeps up answers as many
# requests as are sent, and an overloaded server visibly does not.
MIN_DURATION_LIMITS = 5
# Tolerated growth of the number of requests in flight, in standard deviations.
MAX_DEVIATIONS = 2
# Minimum number of requests per statistic; with fewer, a percentile is just the slowest request.
MIN_REQUESTS = {
    Statistic.P50: 10,
    Statistic.P90: 20,
    Statistic.P95: 40,
    Statistic.P99: 200,
    Statistic.P999: 2000,
    Statistic.MEAN: 10,
}


def parse_slo(values: Iterable[str]) -> tuple[SloLimit, ...]:
    """Parse limits such as "p99=50ms" or "p50=10ms,mean=0.02s".

    Raises:
        ConfigError: a limit has another form, or a statistic has two limits.
    """
    limits = tuple(_limit(part.strip()) for value in values for part in value.split(","))
    names = [limit.statistic for limit in limits]
    for name in names:
        if names.count(name) > 1:
            message = f"--slo limits {name} twice"
            raise ConfigError(message, "name each statistic once: --slo p50=10ms --slo p99=50ms")
    return limits


def _limit(text: str) -> SloLimit:
    match = LIMIT_PATTERN.fullmatch(text)
    if match is None or match["name"] not in {*Statistic} or not float(match["value"]):
        names = ", ".join(Statistic)
        message = f"--slo {text}: expected STATISTIC=TIME, with one of {names} and ms or s"
        raise ConfigError(message, "for example --slo p99=50ms")
    most_ms = float(match["value"]) * MS[match["unit"]]
    return SloLimit(statistic=Statistic(match["name"]), most_ms=most_ms)


def min_rate(limits: Sequence[SloLimit], duration_s: float) -> float:
    """Return the lowest rate (requests/s) whose level has enough requests for these statistics."""
    return max(MIN_REQUESTS[limit.statistic] for limit in limits) / duration_s


def min_duration_s(limits: Sequence[SloLimit]) -> float:
    """Return the minimum duration of a level that detects an overloaded server."""
    return MIN_DURATION_LIMITS * max(limit.most_ms for limit in limits) / 1000


def judge(level: Level, limits: Sequence[SloLimit]) -> RateTrial:
    """Check an open-loop level against the limits.

    The level misses the objective if a latency limit is exceeded, more than 0.1 % of requests fail,
    throughput falls below the rate sent, or the generator sent more than 1 % of requests late (the
    level then did not have its rate).
    """
    measured = tuple(_statistic_ms(level.latency_ms, limit.statistic) for limit in limits)
    slow = [
        _too_slow(limit, measured_ms) for limit, measured_ms in zip(limits, measured, strict=True)
    ]
    missed = (*slow, _failing(level), _overloaded(level), _sent_late(level))
    return RateTrial(rate=level.rate or 0.0, seen_ms=measured, missed=tuple(filter(None, missed)))


def _too_slow(limit: SloLimit, measured_ms: float | None) -> str:
    if measured_ms is None:
        return f"{limit.statistic} unknown: no request succeeded"
    if measured_ms <= limit.most_ms:
        return ""
    return f"{limit.statistic} is {measured_ms:,.4g} ms, limit {limit.most_ms:,.4g} ms"


def _failing(level: Level) -> str:
    share = level.failed / max(level.sent, 1)
    if share <= MAX_FAILED_SHARE:
        return ""
    kinds = ", ".join(sorted(level.errors, key=lambda kind: -level.errors[kind]))
    return f"{share:.1%} of requests failed ({kinds})"


def _overloaded(level: Level) -> str:
    """Describe how far throughput is below the rate sent, "" if it is not.

    The number of requests in flight is the rate times the mean latency (Little's law), with a
    standard deviation of its root at the start and at the end of the level; this much variation is
    tolerated.
    """
    mean_s = 0.0 if level.latency_ms is None else level.latency_ms.mean / 1000
    from_empty = level.arrivals is Arrivals.TRACE  # a trace starts with no request in flight
    sent_per_s = level.sent / level.duration_s
    failed_per_s = level.failed / level.duration_s  # reported by _failing
    chance_per_s = MAX_DEVIATIONS * sqrt(2 * sent_per_s * mean_s) / level.duration_s
    in_flight_per_s = sent_per_s * mean_s / level.duration_s if from_empty else 0.0
    expected_per_s = (
        (sent_per_s - failed_per_s) * MIN_ANSWERED_SHARE - chance_per_s - in_flight_per_s
    )
    if level.requests_per_s >= expected_per_s:
        return ""
    return f"{level.requests_per_s:,.4g} of {sent_per_s:,.4g} requests/s answered in time"


def _sent_late(level: Level) -> str:
    share = level.late / max(level.sent, 1)
    return (
        ""
        if share <= MAX_LATE_SHARE
        else f"{share:.1%} of requests sent late by the load generator"
    )


def _statistic_ms(latency: Latency | None, statistic: Statistic) -> float | None:
    if latency is None:
        return None
    value: float | None = getattr(latency, statistic.replace(".", ""))  # the field of p99.9 is p999
    return value


def format_limits(limits: Sequence[SloLimit]) -> str:
    """Return limits as text, such as "p99 <= 50 ms"."""
    return ", ".join(f"{limit.statistic} <= {limit.most_ms:,.4g} ms" for limit in limits)


def judge_rates(levels: Sequence[Level], limits: Sequence[SloLimit]) -> SloResult:
    """Judge the open-loop levels of the rates given by `--rate`."""
    trials = tuple(judge(level, limits) for level in levels)
    met = [trial.rate for trial in trials if trial.met]
    missed = len(trials) - len(met)
    return SloResult(
        limits=tuple(limits),
        asked=tuple(trial.rate for trial in trials),
        rate=max(met, default=None),
        texts_per_request=levels[0].texts_per_request or 1,
        trials=trials,
        reason=f"{missed} of {len(trials)} missed" if missed else "all met",
    )


def check_slo(result: SloResult) -> None:
    """Check that an objective was met.

    Raises:
        CheckFailedError: the objective was missed; the message contains the violations.
    """
    if result.met:
        return
    missed = [trial for trial in result.trials if not trial.met]
    worst = missed[0] if result.asked else min(missed, key=lambda trial: trial.rate)
    message = f"SLO {format_limits(result.limits)} missed at {worst.rate:,.4g} requests/s: "
    hint = "give the server more resources, send fewer texts per request, or use more --seconds"
    if result.asked:
        hint = "leave out --rate to search for the largest rate that meets the SLO"
    raise CheckFailedError(message + "; ".join(worst.missed), hint)
