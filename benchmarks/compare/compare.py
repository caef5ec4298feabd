"""Comparison of two stored results, level by level: levels match if they have the same load.

Confidence intervals cover the variation within a run, not the drift of the machine between runs;
the tolerance accounts for this drift. Measuring two servers alternately
(`pipework.benchmarks.compare.abba`) needs a smaller tolerance.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, log
from pathlib import Path

from pipework.benchmarks.results_schema.comparison import (
    ComparedLevel,
    ComparisonResult,
    ComparisonSide,
    Quantity,
)
from pipework.benchmarks.results_schema.level import Level
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel, read_result
from pipework.benchmarks.stats.confidence import Estimate, LogVariance, variance_of_interval
from pipework.errors import CheckFailedError, DataError
from pipework.record import Record

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


TOLERANCE = 0.05
TOKENIZER_FIELD = "mean_tokens"  # differs for the same texts if they were tokenized differently


def read_bench(path: Path) -> BenchResult:
    """Read a stored result of `pipe bench`.

    Raises:
        DataError: the file is not a result, or a result of another kind.
    """
    result = read_result(path)
    if isinstance(result, BenchResult):
        return result
    message = f"{path}: expected a result of pipe bench, found kind {result.kind}"
    raise DataError(message, "create one with pipe bench TARGET --json FILE")


def compare(before: BenchResult, after: BenchResult) -> ComparisonResult:
    """Compare the levels that both results have, if their workloads are equal.

    Raises:
        DataError: the workloads differ, or no level is in both results.
    """
    matched = match_levels(before, after)
    workload_differences = tuple(
        _field_differences("workload", before.workload, after.workload, ignore=TOKENIZER_FIELD)
    )
    if workload_differences or not matched.pairs:
        reason = "; ".join(workload_differences) or "the results have no level in common"
        message = f"nothing to compare: {reason}"
        hint = "measure both with the same --file or --words, --batch, --concurrency and --rate"
        raise DataError(message, hint)
    return ComparisonResult(
        before=comparison_side(before),
        after=comparison_side(after),
        rounds=None,
        tolerance=TOLERANCE,
        levels=_compare_pairs(matched.pairs),
        differences=tuple(_differences(before, after)),
        unmatched=(
            *(f"{describe_load(level)}, only before" for level in matched.before),
            *(f"{describe_load(level)}, only after" for level in matched.after),
        ),
    )


def comparison_side(result: BenchResult) -> ComparisonSide:
    """Return the description of a result, without its figures."""
    return ComparisonSide(
        target=result.target,
        model=result.model,
        workload=result.workload,
        provenance=result.provenance,
        command=result.command,
    )


def check_regressions(result: ComparisonResult) -> None:
    """Check that nothing became worse.

    Raises:
        CheckFailedError: the message has the first regression, the details have all of them.
    """
    regressions = result.regressions
    if not regressions:
        return
    more = f", and {len(regressions) - 1} more" if len(regressions) > 1 else ""
    before, after = result.names
    message = f"{after} is worse than {before}: {regressions[0]}{more}"
    hint = "confirm it by measuring both alternately: pipe bench TARGET --against OTHER"
    raise CheckFailedError(message, hint, "\n".join(regressions) if more else "")


def _compare_pairs(pairs: Sequence[LevelPair]) -> tuple[ComparedLevel, ...]:
    estimates = [list(_estimates(*pair)) for pair in pairs]
    simultaneous = max(1, sum(map(len, estimates)))
    return tuple(
        ComparedLevel(
            name=name,
            ratios=tuple(
                estimate.ratio(simultaneous=simultaneous, tolerance=TOLERANCE)
                for estimate in level_estimates
            ),
            failed=(failed_share(before), failed_share(after)),
            cost_per_million=_costs(before, after),
        )
        for name, (before, after), level_estimates in zip(
            level_names(pairs), pairs, estimates, strict=True
        )
    )


def _costs(before: AnyLevel, after: AnyLevel) -> tuple[float, float] | None:
    if isinstance(before, OfflineLevel) or isinstance(after, OfflineLevel):
        return None
    was, now = before.cost_per_million, after.cost_per_million
    return None if was is None or now is None else (was, now)


def _estimates(before: AnyLevel, after: AnyLevel) -> Iterator[Estimate]:
    if before.texts_per_s and after.texts_per_s:
        yield Estimate(
            quantity=Quantity.TEXTS_PER_S,
            before=before.texts_per_s,
            after=after.texts_per_s,
            log_variance=_log_variance(before, after, Quantity.TEXTS_PER_S),
        )
    if before.latency_ms is None or after.latency_ms is None:
        return
    for quantity in (Quantity.P50, Quantity.P99):
        yield Estimate(
            quantity=quantity,
            before=getattr(before.latency_ms, quantity),
            after=getattr(after.latency_ms, quantity),
            log_variance=_log_variance(before, after, quantity),
        )


def _log_variance(before: AnyLevel, after: AnyLevel, quantity: Quantity) -> LogVariance | None:
    """Return the variance of the ratio's logarithm, None if a side has no interval."""
    log_variances = [
        variance_of_interval(*both, level.freedom)
        for level in (before, after)
        if level.freedom is not None
        and (both := _interval(level, quantity)) is not None
        and both[0] > 0
    ]
    return log_variances[0] + log_variances[1] if len(log_variances) == 2 else None  # noqa: PLR2004  (sides)


def _interval(level: AnyLevel, quantity: Quantity) -> tuple[float, float] | None:
    match quantity:
        case Quantity.TEXTS_PER_S:
            return level.interval_texts_per_s
        case Quantity.P50 | Quantity.P99:
            return level.interval_ms.get(quantity)


def failed_share(level: AnyLevel) -> float:
    """Return the share of failed requests."""
    if isinstance(level, OfflineLevel):
        return 0.0
    return level.failed / max(level.failed + level.requests, 1)


def _differences(before: BenchResult, after: BenchResult) -> Iterator[str]:
    earlier, later = before.provenance, after.provenance
    if before.model != after.model:
        yield f"model: {before.model}, now {after.model}"
    yield from _field_differences("machine", earlier.machine, later.machine)
    tokens, tokens_now = before.workload.mean_tokens, after.workload.mean_tokens
    if None not in (tokens, tokens_now) and tokens != tokens_now:
        yield f"mean tokens of a text: {tokens}, now {tokens_now}"
    if earlier.git_commit != later.git_commit:
        yield f"commit: {_short(earlier.git_commit)}, now {_short(later.git_commit)}"
    for package in sorted({*earlier.versions, *later.versions}):
        was, became = earlier.versions.get(package, "absent"), later.versions.get(package, "absent")
        if was != became:
            yield f"{package}: {was}, now {became}"


def _field_differences(
    subject: str, before: Record, after: Record, *, ignore: str = ""
) -> Iterator[str]:
    for name in type(before).model_fields:
        before_value, after_value = getattr(before, name), getattr(after, name)
        if before_value != after_value and name != ignore:
            yield f"other {subject}: {name.replace('_', ' ')} {before_value}, now {after_value}"


def _short(commit: str | None) -> str:
    if commit is None:
        return "no checkout"
    digest, changed, _ = commit.partition("-dirty")
    return digest[:10] + changed
