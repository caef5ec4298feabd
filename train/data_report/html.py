"""Render the data report as HTML."""

from collections.abc import Callable
from html import escape

from pipework.html import page
from pipework.train.data_report.data_report import DataReport, SplitReport

MOST_LABELS = 50
ROWS: tuple[tuple[str, Callable[[SplitReport], str]], ...] = (
    ("rows", lambda split: f"{split.rows:,}"),
    ("characters: median", lambda split: f"{split.characters[0]:,}"),
    ("characters: 95 % have at most", lambda split: f"{split.characters[1]:,}"),
    ("characters: longest", lambda split: f"{split.characters[2]:,}"),
    ("rows tokenized", lambda split: f"{split.tokenized:,}"),
    ("tokens: median", lambda split: f"{split.tokens[0]:,}" if split.tokens else ""),
    ("tokens: 95 % have at most", lambda split: f"{split.tokens[1]:,}" if split.tokens else ""),
    ("tokens: longest", lambda split: f"{split.tokens[2]:,}" if split.tokens else ""),
    ("truncated rows", lambda split: _count(split.truncated)),
    ("truncated rows: share", lambda split: _share(split.truncated_rate)),
    ("unknown tokens", lambda split: _share(split.unknown_rate)),
    ("empty texts", lambda split: f"{split.empty:,}"),
    ("rows that repeat a text", lambda split: f"{split.duplicates:,}"),
    ("texts with conflicting labels", lambda split: f"{split.conflicting:,}"),
)
VALUES = ("smallest", "median", "mean", "largest")


def data_section(report: DataReport) -> str:
    """Return findings, a table of the splits, rows by label, and rows shared between files."""
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in report.findings)
    summary = f"<ul>{findings}</ul>" if findings else "<p>No findings.</p>"
    columns = ("", *report.splits)
    rows = [page.cells((name, *map(show, report.splits.values()))) for name, show in ROWS]
    tables = (page.table(columns, rows), _values(report), _labels(report), _shared(report))
    return page.section("The data", summary + "".join(tables))


def _values(report: DataReport) -> str:
    stats = [split.values for split in report.splits.values()]
    if not any(stats):
        return ""
    rows = [
        page.cells(
            (name, *("" if split is None else f"{getattr(split, name):.4g}" for split in stats))
        )
        for name in VALUES
    ]
    return f"<h3>Values</h3>{page.table(('', *report.splits), rows)}"


def _labels(report: DataReport) -> str:
    splits = list(report.splits.values())
    rows = {
        label: sum(split.labels.get(label, 0) for split in splits)
        for split in splits
        for label in split.labels
    }
    if not rows:
        return ""
    shown = sorted(rows, key=lambda label: -rows[label])[:MOST_LABELS]
    body = [
        page.cells((label, *(f"{split.labels.get(label, 0):,}" for split in splits)))
        for label in shown
    ]
    more = f", the {MOST_LABELS} most frequent of {len(rows):,}" if len(rows) > len(shown) else ""
    return f"<h3>Rows by label{more}</h3>{page.table(('', *report.splits), body)}"


def _shared(report: DataReport) -> str:
    rows = [
        page.cells((f"{pair.later} in {pair.earlier}", f"{pair.rows:,}")) for pair in report.shared
    ]
    title = "<h3>Rows whose text is also in an earlier file</h3>"
    return title + page.table(("", "rows"), rows) if rows else ""


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
