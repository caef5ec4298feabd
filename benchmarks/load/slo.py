"""A service level objective: how it is written, and whether a level of load meets it."""

import re
from collections.abc import Iterable, Sequence
from math import ceil, sqrt

from pipework.benchmarks.results_schema.level import Arrivals, Latency, Level
from pipework.benchmarks.results_schema.slo import Limit, RateTrial, SloResult, Statistic
from pipework.errors import CheckFailedError, ConfigError

WRITTEN = re.compile(r"(?P<name>[a-z]+[\d.]*) *= *(?P<value>\d+(\.\d+)?) *(?P<unit>ms|s)")
MS = {"ms": 1.0, "s": 1000.0}
# Beyond these shares of the requests a rate is missed, however quick the other answers were.
MOST_FAILED = 0.001
MOST_LATE = 0.01
LEAST_ANSWERED = 0.95
# A level is so many times as long as the longest limit. Its warm-up, a fifth of it, is then no
# shorter than the limit: from then on a server that keeps up answers as many as are sent, and one
# that does not falls behind by more than answers may be late by.
LIMITS = 5
# How many standard deviations the requests in flight may be more at the end than at the beginning.
DEVIATIONS = 2
# A percentile is of so many requests at least; below that it is the slowest of them.
LEAST_REQUESTS = {
    Statistic.P50: 10,
    Statistic.P90: 20,
    Statistic.P95: 40,
    Statistic.P99: 200,
    Statistic.P999: 2000,
    Statistic.MEAN: 10,
}


def parse_slo(given: Iterable[str]) -> tuple[Limit, ...]:
    """Read limits such as "p99=50ms" or "p50=10ms,mean=0.02s".

    Raises:
        ConfigError: something else, or a statistic that is limited twice.
    """
    limits = tuple(_limit(one.strip()) for text in given for one in text.split(","))
    names = [limit.statistic for limit in limits]
    for name in names:
        if names.count(name) > 1:
            message = f"--slo limits {name} twice"
            raise ConfigError(message, "name each statistic once: --slo p50=10ms --slo p99=50ms")
    return limits


def _limit(text: str) -> Limit:
    found = WRITTEN.fullmatch(text)
    if found is None or found["name"] not in {*Statistic} or not float(found["value"]):
        names = ", ".join(Statistic)
        message = f"--slo {text}: expected one of {names} and a time in ms or s"
        raise ConfigError(message, "for example --slo p99=50ms")
    most_ms = float(found["value"]) * MS[found["unit"]]
    return Limit(statistic=Statistic(found["name"]), most_ms=most_ms)


def least_rate(limits: Sequence[Limit], duration_s: float) -> float:
    """Return the lowest rate (requests/s) whose level has requests enough for these statistics."""
    return max(LEAST_REQUESTS[limit.statistic] for limit in limits) / duration_s


def least_s(limits: Sequence[Limit]) -> float:
    """Return how long a level is at least, so that a server that falls behind is seen to."""
    return LIMITS * max(limit.most_ms for limit in limits) / 1000


def judge(level: Level, limits: Sequence[Limit]) -> RateTrial:
    """Say what an open-loop level missed.

    A rate is missed by latency, but also if requests fail (one of a thousand), if answers do not
    keep up with what was sent, or if the generator sent one of a hundred late, because then nobody
    knows what the rate would have done.
    """
    seen = tuple(_seen(level.latency_ms, limit.statistic) for limit in limits)
    slow = [_slow(limit, ms) for limit, ms in zip(limits, seen, strict=True)]
    missed = (*slow, _failing(level), _behind(level), _late(level))
    return RateTrial(rate=level.rate or 0.0, seen_ms=seen, missed=tuple(filter(None, missed)))


def _slow(limit: Limit, seen_ms: float | None) -> str:
    if seen_ms is None:
        return f"{limit.statistic} of no answers"
    if seen_ms <= limit.most_ms:
        return ""
    return f"{limit.statistic} {seen_ms:,.4g} ms, wanted {limit.most_ms:,.4g}"


def _failing(level: Level) -> str:
    share = level.failed / max(level.sent, 1)
    if share <= MOST_FAILED:
        return ""
    kinds = ", ".join(sorted(level.errors, key=lambda kind: -level.errors[kind]))
    return f"{share:.1%} of requests failed ({kinds})"


def _behind(level: Level) -> str:
    """What is answered is what was sent, but for chance in how many are in flight.

    These are the rate times the mean latency (Little's law), give or take their root at either end.
    """
    mean_s = 0.0 if level.latency_ms is None else level.latency_ms.mean / 1000
    from_empty = level.arrivals is Arrivals.TRACE  # a trace begins with none in flight
    sent_per_s = level.sent / level.duration_s
    failed_per_s = level.failed / level.duration_s  # told already
    chance_per_s = DEVIATIONS * sqrt(2 * sent_per_s * mean_s) / level.duration_s
    in_flight_per_s = sent_per_s * mean_s / level.duration_s if from_empty else 0.0
    expected_per_s = (sent_per_s - failed_per_s) * LEAST_ANSWERED - chance_per_s - in_flight_per_s
    if level.requests_per_s >= expected_per_s:
        return ""
    return f"answered {level.requests_per_s:,.4g} requests/s of {sent_per_s:,.4g} in time"


def _late(level: Level) -> str:
    share = level.late / max(level.sent, 1)
    return "" if share <= MOST_LATE else f"the generator sent {share:.1%} of requests late"


def _seen(latency: Latency | None, statistic: Statistic) -> float | None:
    if latency is None:
        return None
    value: float | None = getattr(latency, statistic.replace(".", ""))  # p99.9 is p999 there
    return value


def written(limits: Sequence[Limit]) -> str:
    """Write limits as people read them: "p99 at most 50 ms"."""
    return ", ".join(f"{one.statistic} at most {one.most_ms:,.4g} ms" for one in limits)


def asked(levels: Sequence[Level], limits: Sequence[Limit]) -> SloResult:
    """Judge the open-loop levels of rates that were asked for."""
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
        CheckFailedError: it was not; one line says by what.
    """
    if result.met:
        return
    missed = [trial for trial in result.trials if not trial.met]
    worst = missed[0] if result.asked else min(missed, key=lambda trial: trial.rate)
    message = f"{written(result.limits)}: missed at {worst.rate:,.4g} requests/s: "
    hint = "ask without --rate for the largest rate that meets it"
    if not result.asked:
        hint = _hint(result)
    raise CheckFailedError(message + "; ".join(worst.missed), hint)


def _hint(result: SloResult) -> str:
    """Say what to do where no rate was found: a slow server may well meet a rate not tried."""
    if result.peak is not None and result.least is not None and result.peak < result.least:
        times = f"{ceil(2 * result.least / result.peak):,} times the --seconds"
        return (
            f"it answers {result.peak:,.4g} requests/s, and so few are not enough to tell in such a"
            f" level: measure longer, with {times}"
        )
    return "give the server more, or send fewer texts a request"
