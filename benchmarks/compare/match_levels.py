"""Which levels of two results are the same load."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, log

from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel

AnyLevel = Level | OfflineLevel
Pair = tuple[AnyLevel, AnyLevel]
# A rate is drawn at random, or searched for: another one by so small a share is the same load.
SAME_RATE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """Levels that both results have, in the order of the first; and what only one of them has."""

    pairs: tuple[Pair, ...]
    before: tuple[AnyLevel, ...]
    after: tuple[AnyLevel, ...]


def match(before: BenchResult, after: BenchResult) -> Matched:
    """Find for each level that of the other result which is nearest to it, each used once.

    Clients, arrivals, stages and batches are equal; rates are, to one of a hundred. Where a load
    was measured more than once the first belongs to the first.
    """
    theirs, ours = _levels(before), _levels(after)
    near = [
        (apart, place, other)
        for (place, one), (other, another) in product(enumerate(theirs), enumerate(ours))
        if (apart := _apart(one, another)) <= log(1 + SAME_RATE)
    ]
    found: dict[int, int] = {}
    for _, place, other in sorted(near):
        if place not in found and other not in found.values():
            found[place] = other
    return Matched(
        pairs=tuple((theirs[place], ours[found[place]]) for place in sorted(found)),
        before=tuple(one for place, one in enumerate(theirs) if place not in found),
        after=tuple(one for place, one in enumerate(ours) if place not in found.values()),
    )


def _levels(result: BenchResult) -> tuple[AnyLevel, ...]:
    return (*result.offline, *result.levels)


def names(pairs: Sequence[Pair]) -> list[str]:
    """Name the loads of pairs, no two alike."""
    seen: Counter[str] = Counter()
    found = []
    for before, after in pairs:
        name = shown(before) if _apart(before, after) == 0 else f"{shown(before)} ({shown(after)})"
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}, no. {seen[name]}")
    return found


def shown(level: AnyLevel) -> str:
    """Say what the load of a level is; a rate to its last digit, so that others are told apart."""
    if isinstance(level, OfflineLevel):
        return f"{level.stage}, {level.batch} a call"
    if level.rate is not None:
        return f"{level.rate:,.10g} requests/s, {level.arrivals}"
    return f"{level.load:g} client{'s' * (level.load > 1)}"


def _apart(one: AnyLevel, other: AnyLevel) -> float:
    """Return the logarithm of how many times the load of one is that of another."""
    match one, other:
        case OfflineLevel(), OfflineLevel():
            return 0.0 if (one.stage, one.batch) == (other.stage, other.batch) else inf
        case Level(), Level():
            same = (one.concurrency, one.arrivals) == (other.concurrency, other.arrivals)
            if not same or one.rate is None or other.rate is None:
                return 0.0 if same and one.rate == other.rate else inf
            return abs(log(one.rate / other.rate))
        case _:
            return inf
