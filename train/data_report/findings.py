"""What to correct in data files, as sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from unicodedata import category, normalize

from pipework.progress import counted
from pipework.tasks.regression import DECIMAL
from pipework.train.data_report.records import SharedRows, SplitReport
from pipework.train.data_report.text_defects import DEFECTS

UNKNOWN_RATE = 0.05
TRUNCATED_RATE = 0.05
TEMPLATE_RATE = 0.05
RARE_LABEL = 0.1
MANY_LABELS = 0.5  # labels per row above which the column is rather an id or a text
MOSTLY = 0.8  # of the rows
LISTED = 5  # labels in a finding
FEW_ROWS = 20  # too few to judge the number of labels
BALANCE = 'set train.class_weights = "balanced" and task.metric = "macro_f1"'


# The counts of a split that are findings: attribute, noun, sentence.
COUNTS = (
    ("skipped", "row", "without a label left out"),
    ("disputed", "row", "with different labels of annotators"),
    ("dropped", "row", "left out: also in dev, test or calibration"),
    ("headers", "row", "that repeats the header: remove such rows"),
    ("duplicates", "row", "with the text of an earlier row"),
    ("conflicting", "text", "with different labels"),
    ("same_tokens", "text", "with the tokens of another text: lower-casing, or unknown characters"),
    ("empty", "row", "with an empty text"),
    ("overlapping", "span", "that overlap an earlier one: the longest of them is learned"),
    ("inside_words", "span", "that begin or end inside of a run of letters: see task.words"),
)


def findings(
    splits: Mapping[str, SplitReport], shared: Sequence[SharedRows], labels: Sequence[str]
) -> Iterable[str]:
    """Yield the findings about the files; `labels` are the labels of the task, if configured."""
    for name, split in splits.items():
        for attribute, noun, sentence in COUNTS:
            if count := getattr(split, attribute):
                yield f"{name}: {counted(count, noun)} {sentence}"
        yield from _text_findings(name, split)
        yield from _rare_labels(name, split, learned=split is next(iter(splits.values())))
    yield from _label_findings(splits)
    for pair in shared:
        advice = ", data.drop_leaked drops them" if pair.earlier == "train" else ""
        if pair.rows:
            yield (
                f"{counted(pair.rows, 'row')} of {pair.later} also in {pair.earlier}: "
                f"scores on {pair.later} are too high (pipe check --rows FILE lists them{advice})"
            )
        if pair.templates > TEMPLATE_RATE * splits[pair.later].rows:
            yield (
                f"{counted(pair.templates, 'row')} of {pair.later} have a text of {pair.earlier} "
                f"with other spans: scores on {pair.later} are too high for other texts; hold out "
                "rows by template (data.group)"
            )
    yield from _missing_labels(splits, labels)


def _missing_labels(splits: Mapping[str, SplitReport], labels: Sequence[str]) -> Iterable[str]:
    first, *others = splits
    for name in others:
        new = sorted(splits[name].labels.keys() - splits[first].labels.keys())
        if new:
            yield f"{name} has labels that {first} lacks: {', '.join(new[:LISTED])}"
    found = {label for split in splits.values() for label in split.labels}
    unused = [label for label in labels if label not in found]
    if found and unused:
        yield f"no row has the labels {', '.join(unused[:LISTED])} of task.labels"


def _label_findings(splits: Mapping[str, SplitReport]) -> Iterable[str]:
    """Yield findings about a wrong column of labels, a wrong kind of task, and spellings."""
    name, train = next(iter(splits.items()))
    if train.without_labels > MOSTLY * train.rows:
        share = f"{counted(train.without_labels, 'row')} ({train.without_labels / train.rows:.0%})"
        yield f"{name}: {share} without a label: {BALANCE}, so that rare labels are learned"
    count, numeric = len(train.labels), all(map(DECIMAL.fullmatch, train.labels))
    if train.rows >= FEW_ROWS and count > MANY_LABELS * train.rows:
        advice = ', or set task.kind = "regression" if the labels are values' if numeric else ""
        yield (
            f"{name}: {count:,} different labels in {train.rows:,} rows: the column may be an id "
            f"or a text: check data.columns.label{advice}"
        )
    elif numeric and count > 2:  # noqa: PLR2004  (two numbers are rather classes)
        lowest, highest = (choose(train.labels, key=float) for choose in (min, max))
        yield (
            f"{name}: the {count} labels are numbers from {lowest} to {highest}, learned as "
            'classes without an order: if they are values, set task.kind = "regression"'
        )
    rows = sum((Counter(split.labels) for split in splits.values()), Counter())
    groups = (list(group) for _, group in groupby(sorted(rows, key=_folded), _folded))
    for labels in islice((group for group in groups if len(group) > 1), LISTED):
        names = " and ".join(f"{_shown(label)} ({counted(rows[label], 'row')})" for label in labels)
        yield (
            f"the labels {names} differ only by case, spaces or invisible characters: correct them "
            "in the data"
        )


def _folded(label: str) -> str:
    visible = (char for char in normalize("NFKC", label) if category(char) != "Cf")
    return "".join("".join(visible).casefold().split())


def _shown(label: str) -> str:
    """Return a label in quotes, with escapes if its characters do not identify it."""
    plain = label == normalize("NFC", label) and not any(category(char) == "Cf" for char in label)
    return repr(label) if plain else ascii(label)


def _text_findings(name: str, split: SplitReport) -> Iterable[str]:
    """Yield findings about texts: a header, damages, their language, their lengths."""
    if split.header is not None:
        yield (
            f"{name}: the first line may be a header, because no other row has the label "
            f"{split.header!r}: set data.header = true"
        )
    for defect, rows in split.defects.items():
        yield f"{name}: {counted(rows, 'row')} with {defect}: {DEFECTS[defect][1]}"
    if split.unknown_rate is not None and split.unknown_rate > UNKNOWN_RATE:
        yield (
            f"{name}: {split.unknown_rate:.1%} of the tokens are unknown in the vocabulary: "
            "check its language"
        )
    if (split.truncated_rate or 0) > TRUNCATED_RATE:
        yield (
            f"{name}: {_share(split)} longer than max_length and truncated: model.max_length = "
            f"{split.enough_tokens} truncates at most 1 % of the rows, for {split.enough_cost:.2f} "
            f"times the tokens{_windows(split)}"
        )


def _rare_labels(name: str, split: SplitReport, *, learned: bool) -> Iterable[str]:
    one_each = learned and sum(split.labels.values()) == split.rows
    advice = f': {BALANCE} or "matthews"' if one_each else ""
    mean = sum(split.labels.values()) / max(len(split.labels), 1)
    rare = [label for label, count in split.labels.items() if count < RARE_LABEL * mean]
    if rare:
        names = ", ".join(rare[:LISTED])
        yield f"{name}: labels with less than 10 % of the mean count: {names}{advice}"
    always = [label for label, rows in split.labels.items() if rows == split.rows]
    if always and len(split.labels) > 1:
        yield f"{name}: every row has the label {always[0]}, which cannot be learned"


def _windows(split: SplitReport) -> str:
    """Describe how many windows read the whole of all texts."""
    if split.windows is None:
        return ""
    mean = split.windows / split.tokenized
    return f"; or read them whole, in windows (windows.stride): {mean:.2f} windows per row"


def _share(split: SplitReport) -> str:
    rate = f"({split.truncated_rate:.1%})"
    if split.tokenized < split.rows:
        return f"{split.truncated} of {split.tokenized:,} tokenized rows {rate}"
    return f"{counted(split.truncated or 0, 'row')} {rate}"
