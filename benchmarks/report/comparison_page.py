"""Output of a comparison: a table for the terminal, and a self-contained HTML page."""

from collections import Counter
from html import escape

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.bench_page import workload_facts
from pipework.benchmarks.results_schema.comparison import (
    ComparisonResult,
    ComparisonSide,
    Quantity,
    Ratio,
    RatioVerdict,
)
from pipework.html import page as html_page

HEAD = ("at", "what", "before", "after", "ratio", "95 % interval", "verdict")
COST = "per million"  # cost of a million texts; it follows from the rate, so it has no verdict
KINDS = {RatioVerdict.FASTER: "good", RatioVerdict.SLOWER: "bad"}
BETTER = {Quantity.TEXTS_PER_S: "Right", Quantity.P50: "Left", Quantity.P99: "Left"}
LEGEND = "Point: ratio to the baseline. Line: interval. Band: differences within the tolerance."


def print_result(result: ComparisonResult) -> None:
    """Print the table, the notes and the conclusion."""
    table = tables.TextTable(title="", head=HEAD, rows=tuple(_rows(result)))
    tables.print_tables(_title(result), [table], [*_notes(result), conclusion(result)])


def conclusion(result: ComparisonResult) -> str:
    """Return the conclusion in one line: the overall verdict and the number of each verdict."""
    verdicts = Counter(ratio.verdict for level in result.levels for ratio in level.ratios)
    counts = ", ".join(f"{kind} {verdicts[kind]}" for kind in RatioVerdict if verdicts[kind])
    worse = len(result.regressions)
    failing = sum(level.fails_more for level in result.levels)
    more = f", more failures {failing}" if failing else ""
    verdict = "worse" if worse else "not worse"
    before, after = result.names
    return f"{after} is {verdict} than {before}: {counts}{more}"


def page(result: ComparisonResult) -> str:
    """Return the HTML page: conclusion, plots and table of the ratios, and both sides.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    workload = tables.served_workload_line(result.after.workload)
    line = f"{result.after.model} · {workload} · {_method(result)}"
    kind = "worse" if result.regressions else "better" if _faster(result) else ""
    table = html_page.table(HEAD, (_cells(row) for row in _rows(result)), "two-names")
    note = "All intervals hold simultaneously with 95 % confidence."
    parts = (
        html_page.header(_title(result), line),
        f'<p class="verdict {kind}"><b>{escape(conclusion(result))}</b></p>',
        *(f'<p class="verdict">{escape(line)}</p>' for line in _notes(result)),
        _plots(result),
        html_page.section("All figures", f'<p class="quiet">{note}</p>{table}'),
        _side("After", result.after),
        _side("Before", result.before),
    )
    return html_page.render_page(f"{_title(result)}: comparison", parts)


def _title(result: ComparisonResult) -> str:
    before, after = result.names
    return f"{after} against {before}"


def _method(result: ComparisonResult) -> str:
    if result.rounds is None:
        return "two stored results"
    return f"measured alternately, {result.rounds} rounds of before, after, after, before"


def _faster(result: ComparisonResult) -> bool:
    return any(
        ratio.verdict is RatioVerdict.FASTER for level in result.levels for ratio in level.ratios
    )


def _notes(result: ComparisonResult) -> list[str]:
    notes = [f"Other differences: {'; '.join(result.differences)}."] if result.differences else []
    if result.unmatched:
        notes.append(f"Not compared: {'; '.join(result.unmatched)}.")
    if result.rounds is None:
        tolerance = f"{result.tolerance:.0%}"
        notes.append(
            f"Measured at different times: differences below {tolerance} are attributed to drift of"
            " the machine. To detect smaller differences, run pipe bench A --against B"
        )
    return notes


def _rows(result: ComparisonResult) -> list[tuple[str, ...]]:
    rows = []
    for level in result.levels:
        rows += [(level.name, *_row(ratio)) for ratio in level.ratios]
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
    bounds = (
        "-" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    )
    return (
        unit,
        shown(ratio.before),
        shown(ratio.after),
        f"{ratio.ratio:.3f}",
        bounds,
        ratio.verdict,
    )


def _cells(row: tuple[str, ...]) -> str:
    *others, verdict = row
    kind = KINDS.get(RatioVerdict(verdict)) if verdict else None
    marked = f' class="{kind}"' if kind else ""
    return html_page.cells(others) + f"<td{marked}>{escape(verdict)}</td>"


def _plots(result: ComparisonResult) -> str:
    from pipework.benchmarks.report import plots  # noqa: PLC0415  (needs an extra)

    quantities = {ratio.quantity for level in result.levels for ratio in level.ratios}
    drawn = [
        (
            f"Ratio to the baseline: {quantity}",
            f"{LEGEND} {BETTER[quantity]} is better.",
            plots.ratio_plot(result, quantity),
        )
        for quantity in Quantity
        if quantity in quantities
    ]
    return html_page.section("Ratios", html_page.plots(drawn)) if drawn else ""


def _side(title: str, side: ComparisonSide) -> str:
    measured_at = f"{side.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    line = f'<p class="quiet">{escape(f"{side.target} · {side.model} · {measured_at}")}</p>'
    return html_page.section(
        title, line + workload_facts(side.workload, side.provenance, side.command)
    )
