"""The data report as HTML."""

from collections.abc import Callable
from html import escape

from pipework.html import page as frame
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
    ("cut at max_length, or just fitting", lambda split: _count(split.truncated)),
    ("unknown tokens", lambda split: _share(split.unknown_rate)),
    ("empty texts", lambda split: f"{split.empty:,}"),
    ("rows that repeat a text", lambda split: f"{split.duplicates:,}"),
    ("texts with conflicting labels", lambda split: f"{split.conflicting:,}"),
)
VALUES = ("smallest", "median", "mean", "largest")


def data_section(report: DataReport) -> str:
    """Return findings, a table of the splits, rows by label, and what stands in two files."""
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in report.findings)
    said = f"<ul>{findings}</ul>" if findings else "<p>Nothing stood out.</p>"
    columns = ("", *report.splits)
    rows = [frame.cells((name, *map(show, report.splits.values()))) for name, show in ROWS]
    tables = (frame.table(columns, rows), _values(report), _labels(report), _shared(report))
    return frame.section("The data", said + "".join(tables))


def _values(report: DataReport) -> str:
    found = [split.values for split in report.splits.values()]
    if not any(found):
        return ""
    rows = [
        frame.cells((name, *("" if one is None else f"{getattr(one, name):.4g}" for one in found)))
        for name in VALUES
    ]
    return f"<h3>Values</h3>{frame.table(('', *report.splits), rows)}"


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
        frame.cells((label, *(f"{split.labels.get(label, 0):,}" for split in splits)))
        for label in shown
    ]
    more = f", the {MOST_LABELS} most frequent of {len(rows):,}" if len(rows) > len(shown) else ""
    return f"<h3>Rows by label{more}</h3>{frame.table(('', *report.splits), body)}"


def _shared(report: DataReport) -> str:
    rows = [
        frame.cells((f"{one.later} in {one.earlier}", f"{one.rows:,}")) for one in report.shared
    ]
    title = "<h3>Rows whose text stands in an earlier file</h3>"
    return title + frame.table(("", "rows"), rows) if rows else ""


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
