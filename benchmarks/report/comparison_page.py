"""A comparison for people: a table for the terminal, and one HTML page."""

from collections import Counter
from html import escape
from pathlib import Path

from pipework.benchmarks.report import tables
from pipework.benchmarks.report.bench_page import facts
from pipework.benchmarks.report.tables import drawn
from pipework.benchmarks.results_schema.comparison import (
    ComparisonResult,
    Quantity,
    Ratio,
    Side,
    Verdict,
)
from pipework.benchmarks.results_schema.results import check_writable
from pipework.html import page as frame
from pipework.run_folder.files import write_atomically

HEAD = ("at", "what", "before", "after", "times as before", "95 % interval", "verdict")
COST = "per million"  # texts: it follows from the rate, and is not judged
KINDS = {Verdict.FASTER: "good", Verdict.SLOWER: "bad"}
BETTER = {Quantity.TEXTS_PER_S: "Right", Quantity.P50: "Left", Quantity.P99: "Left"}
DRAWN = "The point is the ratio, its line the interval, the band what counts as no difference."


def terminal(result: ComparisonResult) -> str:
    """Return the table, what else differs, and the conclusion as plain text."""
    table = tables.Table(title="", head=HEAD, rows=tuple(_rows(result)))
    return drawn(_title(result), [table], [*_remarks(result), conclusion(result)])


def conclusion(result: ComparisonResult) -> str:
    """Say in one line how often each verdict was given."""
    verdicts = Counter(one.verdict for level in result.levels for one in level.ratios)
    counts = ", ".join(f"{kind} {verdicts[kind]}" for kind in Verdict if verdicts[kind])
    worse = len(result.regressions)
    failing = sum(level.fails_more for level in result.levels)
    more = f", more failures {failing}" if failing else ""
    said = "worse" if worse else "not worse"
    before, after = result.names
    return f"{after} is {said} than {before}: {counts}{more}"


def write_page(path: Path, result: ComparisonResult) -> None:
    """Write the page atomically.

    Raises:
        ConfigError: the path cannot be written.
        ModuleNotFoundError: matplotlib is not installed.
    """
    check_writable(path)
    write_atomically(path, page(result).encode())


def page(result: ComparisonResult) -> str:
    """Return one HTML page: conclusion, ratios drawn and as a table, both sides.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    line = f"{result.after.model} · {tables.sent_line(result.after.workload)} · {_how(result)}"
    kind = "worse" if result.regressions else "better" if _faster(result) else ""
    table = frame.table(HEAD, (_cells(row) for row in _rows(result)), "two-names")
    note = "An interval holds with 95 % confidence together with all the others here."
    parts = (
        frame.header(_title(result), line),
        f'<p class="verdict {kind}"><b>{escape(conclusion(result))}</b></p>',
        *(f'<p class="verdict">{escape(remark)}</p>' for remark in _remarks(result)),
        _plots(result),
        frame.section("All figures", f'<p class="quiet">{note}</p>{table}'),
        _side("After", result.after),
        _side("Before", result.before),
    )
    return frame.whole(f"{_title(result)}: comparison", parts)


def _title(result: ComparisonResult) -> str:
    before, after = result.names
    return f"{after} against {before}"


def _how(result: ComparisonResult) -> str:
    if result.rounds is None:
        return "two stored results"
    return f"in turns, {result.rounds} rounds of before, after, after, before"


def _faster(result: ComparisonResult) -> bool:
    return any(one.verdict is Verdict.FASTER for level in result.levels for one in level.ratios)


def _remarks(result: ComparisonResult) -> list[str]:
    remarks = [f"Not the same: {'; '.join(result.differences)}."] if result.differences else []
    if result.unmatched:
        remarks.append(f"Not compared: {'; '.join(result.unmatched)}.")
    if result.rounds is None:
        tolerance = f"{result.tolerance:.0%}"
        remarks.append(
            f"Measured at two times: differences of less than {tolerance} are taken for drift of"
            " the machine. Two targets in turns show smaller ones: pipe bench A --against B"
        )
    return remarks


def _rows(result: ComparisonResult) -> list[tuple[str, ...]]:
    rows = []
    for level in result.levels:
        rows += [(level.name, *_row(one)) for one in level.ratios]
        if level.cost_per_million is not None:
            was, now = level.cost_per_million
            times = f"{now / was:.3f}" if was else ""
            rows.append((level.name, COST, tables.ms(was), tables.ms(now), times, "", ""))
        if any(level.failed):
            before, after = (f"{share:.1%}" for share in level.failed)
            said = Verdict.SLOWER if level.fails_more else Verdict.NO_DIFFERENCE
            rows.append((level.name, "failed", before, after, "", "", said))
    return rows


def _row(one: Ratio) -> tuple[str, ...]:
    rate = one.quantity is Quantity.TEXTS_PER_S
    shown, unit = (tables.rate, "texts/s") if rate else (tables.ms, f"{one.quantity} ms")
    bounds = "-" if one.low is None or one.high is None else f"{one.low:.3f} to {one.high:.3f}"
    return unit, shown(one.before), shown(one.after), f"{one.ratio:.3f}", bounds, one.verdict


def _cells(row: tuple[str, ...]) -> str:
    *others, said = row
    kind = KINDS.get(Verdict(said)) if said else None
    marked = f' class="{kind}"' if kind else ""
    return frame.cells(others) + f"<td{marked}>{escape(said)}</td>"


def _plots(result: ComparisonResult) -> str:
    from pipework.benchmarks.report import comparison_plots  # noqa: PLC0415  (needs an extra)

    seen = {one.quantity for level in result.levels for one in level.ratios}
    found = [
        (
            f"Times as before: {quantity}",
            f"{DRAWN} {BETTER[quantity]} is better.",
            comparison_plots.ratios(result, quantity),
        )
        for quantity in Quantity
        if quantity in seen
    ]
    return frame.section("Ratios", frame.plots(found)) if found else ""


def _side(title: str, side: Side) -> str:
    made = f"{side.provenance.created_at:%Y-%m-%d %H:%M} UTC"
    line = f'<p class="quiet">{escape(f"{side.target} · {side.model} · {made}")}</p>'
    return frame.section(title, line + facts(side.workload, side.provenance, side.command))
