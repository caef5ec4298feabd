"""Matching of the levels of two results that have the same load."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, log

from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel

AnyLevel = Level | OfflineLevel
LevelPair = tuple[AnyLevel, AnyLevel]
# Measured and searched rates vary slightly: rates within this share are the same load.
SAME_RATE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedLevels:
    """Pairs of levels with the same load in the order of the first result, and unmatched levels."""

    pairs: tuple[LevelPair, ...]
    before: tuple[AnyLevel, ...]
    after: tuple[AnyLevel, ...]


def match_levels(before: BenchResult, after: BenchResult) -> MatchedLevels:
    """Match each level with the nearest level of the other result; each level is used once.

    Clients, arrivals, stages and batches must be equal, rates must agree within 1 %. If a load was
    measured several times, levels are matched in their order.
    """
    before_levels, after_levels = _levels(before), _levels(after)
    candidates = [
        (distance, before_index, after_index)
        for (before_index, before_level), (after_index, after_level) in product(
            enumerate(before_levels), enumerate(after_levels)
        )
        if (distance := _distance(before_level, after_level)) <= log(1 + SAME_RATE)
    ]
    matches: dict[int, int] = {}
    for _, before_index, after_index in sorted(candidates):
        if before_index not in matches and after_index not in matches.values():
            matches[before_index] = after_index
    return MatchedLevels(
        pairs=tuple(
            (before_levels[before_index], after_levels[matches[before_index]])
            for before_index in sorted(matches)
        ),
        before=tuple(
            before_level
            for before_index, before_level in enumerate(before_levels)
            if before_index not in matches
        ),
        after=tuple(
            after_level
            for after_index, after_level in enumerate(after_levels)
            if after_index not in matches.values()
        ),
    )


def _levels(result: BenchResult) -> tuple[AnyLevel, ...]:
    return (*result.offline, *result.levels)


def level_names(pairs: Sequence[LevelPair]) -> list[str]:
    """Return a unique name for each pair of levels."""
    seen: Counter[str] = Counter()
    all_names = []
    for before, after in pairs:
        name = (
            describe_load(before)
            if _distance(before, after) == 0
            else f"{describe_load(before)} ({describe_load(after)})"
        )
        seen[name] += 1
        all_names.append(name if seen[name] == 1 else f"{name}, no. {seen[name]}")
    return all_names


def describe_load(level: AnyLevel) -> str:
    """Describe the load of a level; rates have all digits, so that similar rates differ."""
    if isinstance(level, OfflineLevel):
        return f"{level.stage}, {level.batch} per call"
    if level.rate is not None:
        return f"{level.rate:,.10g} requests/s, {level.arrivals}"
    return f"{level.load:g} client{'s' * (level.load > 1)}"


def _distance(first: AnyLevel, second: AnyLevel) -> float:
    """Return the absolute logarithm of the ratio of two loads, infinite if they are different."""
    match first, second:
        case OfflineLevel(), OfflineLevel():
            return 0.0 if (first.stage, first.batch) == (second.stage, second.batch) else inf
        case Level(), Level():
            same = (first.concurrency, first.arrivals) == (second.concurrency, second.arrivals)
            if not same or first.rate is None or second.rate is None:
                return 0.0 if same and first.rate == second.rate else inf
            return abs(log(first.rate / second.rate))
        case _:
            return inf
