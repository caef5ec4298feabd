"""The data report as tables, for the terminal and for pages."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape

from pipework.html import page
from pipework.train.data_report.records import DataReport, SplitReport, ValueStats

MOST_LABELS = 50  # on a page
ROWS: tuple[tuple[str, Callable[[SplitReport], str]], ...] = (
    ("rows", lambda split: f"{split.rows:,}"),
    ("characters: median, 95 %, longest", lambda split: _numbers(split.characters)),
    ("rows tokenized", lambda split: f"{split.tokenized:,}"),
    ("tokens: median, 95 %, longest", lambda split: _numbers(split.tokens or ())),
    ("truncated rows", lambda split: _with_share(split.truncated, split.truncated_rate)),
    ("unknown tokens", lambda split: _share(split.unknown_rate)),
    ("empty texts", lambda split: f"{split.empty:,}"),
    ("rows that repeat a text", lambda split: f"{split.duplicates:,}"),
    ("texts with conflicting labels", lambda split: f"{split.conflicting:,}"),
)
VALUES = ("smallest", "median", "mean", "largest")
Rows = Sequence[tuple[str, ...]]


def tables(
    report: DataReport, most_labels: int | None = None
) -> Iterator[tuple[str, tuple[str, ...], Rows]]:
    """Yield the title, columns and rows of each table; the first has no title.

    `most_labels` limits the rows by label to the most frequent labels.
    """
    splits = report.splits.values()
    columns = ("", *report.splits)
    yield "", columns, [(name, *map(show, splits)) for name, show in ROWS]
    stats = [split.values for split in splits]
    if any(stats):
        yield "values", columns, [(name, *map(partial(_value, name), stats)) for name in VALUES]
    labels = _rows_by_label(report.splits)
    if labels:
        shown = labels[:most_labels]
        some = len(shown) < len(labels)
        more = f", the {most_labels} most frequent of {len(labels):,}" if some else ""
        yield f"rows by label{more}", columns, shown
    if report.shared:
        shared = [(f"{pair.later} in {pair.earlier}", f"{pair.rows:,}") for pair in report.shared]
        yield "rows whose text is also in an earlier file", ("", "rows"), shared


def data_section(report: DataReport) -> str:
    """Return the findings and the tables as HTML."""
    findings = "".join(f"<li>{escape(finding)}</li>" for finding in report.findings)
    parts = [f"<ul>{findings}</ul>" if findings else "<p>No findings.</p>"]
    for title, columns, rows in tables(report, MOST_LABELS):
        heading = f"<h3>{title.capitalize()}</h3>" if title else ""
        parts.append(heading + page.table(columns, map(page.cells, rows)))
    return page.section("The data", "".join(parts))


def _rows_by_label(splits: Mapping[str, SplitReport]) -> Rows:
    """Return the number of rows of each label by split, the most frequent label first."""
    rows = Counter[str]()
    for split in splits.values():
        rows.update(split.labels)
    by_label: list[tuple[str, ...]] = [
        (label, *map(partial(_rows_with, label), splits.values()))
        for label, _ in rows.most_common()
    ]
    if any(split.without_labels for split in splits.values()):
        counts = (f"{split.without_labels:,}" for split in splits.values())
        by_label.insert(0, ("without a label", *counts))
    return by_label


def _rows_with(label: str, split: SplitReport) -> str:
    return f"{split.labels.get(label, 0):,}"


def _value(name: str, stats: ValueStats | None) -> str:
    return "" if stats is None else f"{getattr(stats, name):g}"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


def _with_share(count: int | None, share: float | None) -> str:
    return "" if count is None else f"{count:,} ({_share(share)})"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
