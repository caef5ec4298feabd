"""Comparison of two stored results, level by level.

Confidence intervals cover the variation within a run, not the drift of the machine between runs;
the tolerance accounts for this drift. Measuring two servers alternately
(`pipework.benchmarks.compare.abba`) needs a smaller tolerance.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipework.benchmarks.compare.match_levels import (
    AnyLevel,
    LevelPair,
    describe_load,
    level_names,
    match_levels,
)
from pipework.benchmarks.results_schema.comparison import (
    ComparedLevel,
    ComparisonResult,
    ComparisonSide,
    Quantity,
)
from pipework.benchmarks.results_schema.results import BenchResult, OfflineLevel, read_result
from pipework.benchmarks.stats.confidence import Estimate, LogVariance, variance_of_interval
from pipework.errors import CheckFailedError, DataError
from pipework.run_folder.files import Record

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
