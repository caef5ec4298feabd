"""Report of a comparison: its conclusion, and the ratios with their intervals."""

from collections import Counter

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.report import Report, ResultNote
from pipework.benchmarks.results_schema.comparison import (
    ComparedLevel,
    ComparisonResult,
    Quantity,
    Ratio,
    RatioVerdict,
)

HEAD = ("at", "what", "before", "after", "ratio", "95 % interval", "verdict")
COST = "per million"  # cost of a million texts; it follows from the rate, so it has no verdict


def report(result: ComparisonResult) -> Report:
    """Return the report of two servers measured alternately."""
    before, after = result.names
    workload = tables.served_workload_line(result.workload)
    rows = [row for level in result.levels for row in _rows(level)]
    return Report(
        heading=f"{after} against {before}",
        line=f"{workload}, in {result.rounds} rounds of before, after, after, before",
        notes=(conclusion(result),),
        tables=(tables.TextTable(title="", head=HEAD, rows=tuple(rows), kind="two-names"),),
        caption="All intervals hold simultaneously with 95 % confidence.",
        plots=list,  # the ratios have no plot: the table has their intervals
    )


def conclusion(result: ComparisonResult) -> ResultNote:
    """Return the overall verdict and the number of each verdict."""
    verdicts = Counter(ratio.verdict for level in result.levels for ratio in level.ratios)
    counts = [f"{kind} {verdicts[kind]}" for kind in RatioVerdict if verdicts[kind]]
    failing = sum(level.fails_more for level in result.levels)
    if failing:
        counts.append(f"more failures {failing}")
    before, after = result.names
    worse = bool(result.regressions)
    return ResultNote(
        title=f"{after} is {'worse' if worse else 'not worse'} than {before}",
        text=", ".join(counts),
        bad=worse,
        good=not worse and verdicts[RatioVerdict.FASTER] > 0,
    )


def _rows(level: ComparedLevel) -> list[tuple[str, ...]]:
    rows = [(level.name, *_row(ratio)) for ratio in level.ratios]
    if level.cost_per_million is not None:
        was, now = level.cost_per_million
        times = f"{now / was:.3f}" if was else ""
        rows.append((level.name, COST, tables.ms(was), tables.ms(now), times, "", ""))
    if any(level.failed):
        before, after = (f"{share:.1%}" for share in level.failed)
        verdict = RatioVerdict.SLOWER if level.fails_more else RatioVerdict.NO_DIFFERENCE
        rows.append((level.name, "failed", before, after, "", "", verdict))
    return rows


def _row(ratio: Ratio) -> tuple[str, ...]:
    rate = ratio.quantity is Quantity.TEXTS_PER_S
    shown, unit = (tables.rate, "texts/s") if rate else (tables.ms, f"{ratio.quantity} ms")
    return (
        unit,
        shown(ratio.before),
        shown(ratio.after),
        f"{ratio.ratio:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        ratio.verdict,
    )
