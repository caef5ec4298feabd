"""Two stored results, level by level: what became faster, what slower, and how sure that is.

An interval knows how much the levels of one run vary, not how much a machine drifts between two
runs; the tolerance stands for that. Two targets in turns (`pipework.benchmarks.compare.abba`) need less of it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipework.benchmarks.compare.match_levels import AnyLevel, Pair, match, names, shown
from pipework.benchmarks.results_schema.comparison import (
    ComparedLevel,
    ComparisonResult,
    Quantity,
    Side,
)
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel, read_result
from pipework.benchmarks.stats.ratios import Estimate, Spread, of_interval
from pipework.errors import CheckFailedError, DataError
from pipework.run_folder.files import Record

TOLERANCE = 0.05
COUNTED = "mean_tokens"  # of the same texts: says how they were counted, not which they are


def read_bench(path: Path) -> BenchResult:
    """Read a stored result of `pipe bench`.

    Raises:
        DataError: it is of another kind, or none.
    """
    result = read_result(path)
    if isinstance(result, BenchResult):
        return result
    message = f"{path} holds a result of kind {result.kind}, expected one of pipe bench"
    raise DataError(message, "measure with pipe bench TARGET --json FILE")


def compare(before: BenchResult, after: BenchResult) -> ComparisonResult:
    """Compare the levels that both results have, if they were given the same texts.

    Raises:
        DataError: there is no such level.
    """
    found = match(before, after)
    other = tuple(_apart("workload", before.workload, after.workload, but=COUNTED))
    if other or not found.pairs:
        why = "; ".join(other) or "no level of the one is in the other"
        message = f"nothing to compare: {why}"
        hint = "measure both with the same --file or --words, --batch, --concurrency and --rate"
        raise DataError(message, hint)
    return ComparisonResult(
        before=side(before),
        after=side(after),
        rounds=None,
        tolerance=TOLERANCE,
        levels=_compared(found.pairs),
        differences=tuple(_differences(before, after)),
        unmatched=(
            *(f"{shown(one)}, only before" for one in found.before),
            *(f"{shown(one)}, only after" for one in found.after),
        ),
    )


def side(result: BenchResult) -> Side:
    """Return what was measured, without its figures."""
    return Side(
        target=result.target,
        model=result.model,
        workload=result.workload,
        provenance=result.provenance,
        command=result.command,
    )


def check_regressions(result: ComparisonResult) -> None:
    """Check that nothing became worse.

    Raises:
        CheckFailedError: something did; one line names the first, and the details all.
    """
    worse = result.regressions
    if not worse:
        return
    more = f", and {len(worse) - 1} more" if len(worse) > 1 else ""
    before, after = result.names
    message = f"{after} is worse than {before}: {worse[0]}{more}"
    hint = "measure again, both in turns: pipe bench TARGET --against OTHER"
    raise CheckFailedError(message, hint, "\n".join(worse) if more else "")


def _compared(pairs: Sequence[Pair]) -> tuple[ComparedLevel, ...]:
    estimates = [list(_estimates(*pair)) for pair in pairs]
    together = max(1, sum(map(len, estimates)))
    return tuple(
        ComparedLevel(
            name=name,
            ratios=tuple(one.ratio(together=together, tolerance=TOLERANCE) for one in some),
            failed=(failed_share(before), failed_share(after)),
            cost_per_million=_costs(before, after),
        )
        for name, (before, after), some in zip(names(pairs), pairs, estimates, strict=True)
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
            spread=_spread(before, after, Quantity.TEXTS_PER_S),
        )
    if before.latency_ms is None or after.latency_ms is None:
        return
    for quantity in (Quantity.P50, Quantity.P99):
        yield Estimate(
            quantity=quantity,
            before=getattr(before.latency_ms, quantity),
            after=getattr(after.latency_ms, quantity),
            spread=_spread(before, after, quantity),
        )


def _spread(before: AnyLevel, after: AnyLevel, quantity: Quantity) -> Spread | None:
    """Return the spread of the ratio, None where a side was stored without what it takes."""
    spreads = [
        of_interval(*both, one.freedom)
        for one in (before, after)
        if one.freedom is not None
        and (both := _interval(one, quantity)) is not None
        and both[0] > 0
    ]
    return spreads[0] + spreads[1] if len(spreads) == 2 else None  # noqa: PLR2004  (sides)


def _interval(level: AnyLevel, quantity: Quantity) -> tuple[float, float] | None:
    match quantity:
        case Quantity.TEXTS_PER_S:
            return level.interval_texts_per_s
        case Quantity.P50 | Quantity.P99:
            return level.interval_ms.get(quantity)


def failed_share(level: AnyLevel) -> float:
    """Return which part of the requests failed."""
    if isinstance(level, OfflineLevel):
        return 0.0
    return level.failed / max(level.failed + level.requests, 1)


def _differences(before: BenchResult, after: BenchResult) -> Iterator[str]:
    made, now = before.provenance, after.provenance
    if before.model != after.model:
        yield f"model: {before.model}, now {after.model}"
    yield from _apart("machine", made.machine, now.machine)
    tokens, tokens_now = before.workload.mean_tokens, after.workload.mean_tokens
    if None not in (tokens, tokens_now) and tokens != tokens_now:
        yield f"mean tokens of a text: {tokens}, now {tokens_now}"
    if made.git_commit != now.git_commit:
        yield f"commit: {_short(made.git_commit)}, now {_short(now.git_commit)}"
    for package in sorted({*made.versions, *now.versions}):
        was, became = made.versions.get(package, "absent"), now.versions.get(package, "absent")
        if was != became:
            yield f"{package}: {was}, now {became}"


def _apart(what: str, before: Record, after: Record, *, but: str = "") -> Iterator[str]:
    for name in type(before).model_fields:
        was, now = getattr(before, name), getattr(after, name)
        if was != now and name != but:
            yield f"other {what}: {name.replace('_', ' ')} {was}, now {now}"


def _short(commit: str | None) -> str:
    if commit is None:
        return "no checkout"
    digest, changed, _ = commit.partition("-dirty")
    return digest[:10] + changed
