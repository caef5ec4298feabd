"""Check the data files before training.

Texts are compared without regard to case and white space.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations, groupby, islice
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.data.readers import Columns, Format
from pipework.errors import ConfigError
from pipework.progress import Progress, counted
from pipework.record import Record
from pipework.settings import SUFFIXES
from pipework.tasks.registry import task_type
from pipework.tasks.regression import DECIMAL
from pipework.text.encoding import TextEncoder
from pipework.train.config.data import ColumnSettings, DataSettings
from pipework.train.config.run_config import load_config, recipes
from pipework.train.data.disk_cache import cache_key, cached_text, source_content
from pipework.train.data.labels import class_labels
from pipework.train.data.tokenizer import make_tokenizer
from pipework.train.data_report.file_stats import FileStats
from pipework.train.data_report.leaks import check_leaks_file, write_leaks
from pipework.train.data_report.near_duplicates import near_duplicates

UNKNOWN_RATE = 0.05
TRUNCATED_RATE = 0.05
ENOUGH_RATE = 0.01  # of the rows may be longer than a proposed max_length
STEP = 8  # tokens, to which a proposed max_length is rounded up
RARE_LABEL = 0.1
MANY_LABELS = 0.5  # labels per row above which the column is rather an id or a text
FEW_ROWS = 20  # too few to judge the number of labels
UNLIMITED = 1 << 30  # tokens: a max_length that never truncates


class ValueStats(Record):
    """Statistics of the targets of a regression."""

    smallest: float
    median: float
    largest: float
    mean: float


class SplitReport(Record):
    """Statistics of a file: rows by label, lengths, duplicates.

    `values` replaces `labels` for a regression. `characters` and, with a tokenizer, `tokens` are
    the 50th, 95th and 100th percentiles of the lengths. In a large file only `tokenized` rows,
    evenly spaced, are tokenized: `tokens` (before truncation), `truncated` and `unknown_rate` cover
    only these. `truncated` rows are longer than the maximum length; at most 1 % are longer than
    `enough_tokens`, which costs `enough_cost` times the tokens of the maximum length. `header` is
    the label of the first row, if it looks like a header. `dropped` rows are left out by
    data.drop_leaked.
    """

    rows: int
    labels: dict[str, int]
    values: ValueStats | None
    characters: tuple[int, int, int]
    tokenized: int
    tokens: tuple[int, int, int] | None
    truncated: int | None
    enough_tokens: int | None
    enough_cost: float | None
    unknown_rate: float | None
    empty: int
    duplicates: int
    conflicting: int
    header: str | None = None
    dropped: int = 0

    @property
    def truncated_rate(self) -> float | None:
        """The share of the tokenized rows that are truncated."""
        return None if self.truncated is None else self.truncated / max(self.tokenized, 1)


class SharedRows(Record):
    """The number of rows of a later file whose text is also in an earlier file."""

    earlier: str
    later: str
    rows: int


class DataReport(Record):
    """Statistics of all files, rows shared between files, and findings as sentences."""

    splits: dict[str, SplitReport]
    shared: tuple[SharedRows, ...]
    findings: tuple[str, ...]


def cached_report(
    sources: Mapping[str, Source],
    encoder: TextEncoder,
    tokenizer: str,
    labels: Sequence[str] | None,
    progress: Progress,
) -> DataReport:
    """Return the data report from the disk cache; compute it if it is missing.

    The cache key depends on the data files, the read options, the tokenizer and the code.

    Raises:
        DataError: as `data_report`.
    """
    files = [(name, source_content(source)) for name, source in sources.items()]
    parts = ("report", version("tokenizers"), tokenizer, files, encoder.max_length, labels)

    def compute() -> str:
        return data_report(sources, encoder, labels, progress).model_dump_json()

    return DataReport.model_validate_json(cached_text(cache_key(parts), compute))


def data_report(
    sources: Mapping[str, Source],
    encoder: TextEncoder | None,
    labels: Sequence[str] | None,
    progress: Progress,
) -> DataReport:
    """Read every file once and report statistics and findings.

    Args:
        sources: the files by split name.
        encoder: counts tokens, unknown tokens and rows longer than its maximum length, if there is
            a tokenizer.
        labels: names of the classes, if the files hold their indices.
        progress: receives the number of bytes read.

    Raises:
        DataError: a row cannot be read; the message names file and line.
    """
    whole = None if encoder is None else encoder.with_max_length(UNLIMITED)
    limit = UNLIMITED if encoder is None else encoder.max_length
    splits: dict[str, SplitReport] = {}
    texts: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for name, source in sources.items():
        stats = FileStats.of(source, labels, whole, progress)
        _, rows_U = texts[name] = stats.texts()
        duplicates = int(rows_U.sum()) - len(rows_U)
        splits[name] = _split(stats, source, limit, duplicates=duplicates)
    shared = tuple(
        SharedRows(earlier=first, later=second, rows=_common(texts[first][0], *texts[second]))
        for first, second in combinations(sources, 2)
    )
    return DataReport(splits=splits, shared=shared, findings=tuple(_findings(splits, shared)))


def _common(
    earlier_U: NDArray[np.int64], later_U: NDArray[np.int64], rows_U: NDArray[np.int64]
) -> int:
    """Count the rows of the later file whose text is also in the earlier file."""
    return int(rows_U[np.isin(later_U, earlier_U, assume_unique=True)].sum())


def _split(stats: FileStats, source: Source, limit: int, *, duplicates: int) -> SplitReport:
    tokens, tokenized = stats.tokens, stats.tokens.rows
    unknown = (
        None if stats.unknown is None else stats.unknown / max(tokens.total_up_to(UNLIMITED), 1)
    )
    enough = STEP * ceil(tokens.limit_for(ENOUGH_RATE) / STEP) if tokenized else None
    return SplitReport(
        rows=stats.characters.rows,
        labels=dict(sorted(stats.labels.items())),
        values=_values(stats.values()) if source.task.has_values else None,
        characters=stats.characters.percentiles(),
        tokenized=tokenized,
        tokens=tokens.percentiles() if tokenized else None,
        truncated=tokens.above(limit) if tokenized else None,
        enough_tokens=enough,
        enough_cost=enough and tokens.total_up_to(enough) / tokens.total_up_to(limit),
        unknown_rate=unknown,
        empty=stats.empty,
        duplicates=duplicates,
        conflicting=stats.conflicting(),
        header=stats.header() if _may_have_header(source) else None,
        dropped=_dropped(source, stats.characters.rows),
    )


def _dropped(source: Source, rows: int) -> int:
    """Count the rows left out by data.drop_leaked; with a limit of rows they are unknown."""
    if not source.excluded or source.part is None or source.part.limit is not None:
        return 0
    part = source.part.model_copy(update={"without": ()})
    return sum(1 for _ in replace(source, part=part, excluded=()).rows()) - rows


def _may_have_header(source: Source) -> bool:
    options = source.read_options()
    return options.format in (Format.CSV, Format.TSV) and not options.header


def _values(values_N: NDArray[np.float64]) -> ValueStats | None:
    present = values_N[~np.isnan(values_N)]
    if not len(present):
        return None
    return ValueStats(
        smallest=float(present.min()),
        median=float(np.median(present)),
        largest=float(present.max()),
        mean=float(present.mean()),
    )


def _findings(splits: Mapping[str, SplitReport], shared: Sequence[SharedRows]) -> Iterable[str]:
    for name, split in splits.items():
        if split.dropped:
            yield f"{name}: {counted(split.dropped, 'row')} left out: also in dev or test"
        yield from _split_findings(name, split)
    yield from _label_findings(splits)
    for pair in shared:
        advice = ", data.drop_leaked drops them" if pair.earlier == "train" else ""
        if pair.rows:
            yield (
                f"{counted(pair.rows, 'row')} of {pair.later} also in {pair.earlier}: "
                f"scores on {pair.later} are too high (pipe check --rows FILE lists them{advice})"
            )
    first, *others = splits
    for name in others:
        new = sorted(splits[name].labels.keys() - splits[first].labels.keys())
        if new:
            yield f"{name} has labels that {first} lacks: {', '.join(new[:5])}"


def _label_findings(splits: Mapping[str, SplitReport]) -> Iterable[str]:
    """Yield findings about a wrong column of labels, a wrong kind of task, and spellings."""
    name, train = next(iter(splits.items()))
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
    for labels in islice((group for group in groups if len(group) > 1), 5):
        names = " and ".join(f"{label!r} ({counted(rows[label], 'row')})" for label in labels)
        yield f"the labels {names} differ only by case or spaces: correct them in the data"


def _folded(label: str) -> str:
    return "".join(label.casefold().split())


def _split_findings(name: str, split: SplitReport) -> Iterable[str]:
    if split.header is not None:
        yield (
            f"{name}: the first line may be a header, because no other row has the label "
            f"{split.header!r}: set data.header = true"
        )
    if split.duplicates:
        yield f"{name}: {counted(split.duplicates, 'row')} with the text of an earlier row"
    if split.conflicting:
        yield f"{name}: {counted(split.conflicting, 'text')} with different labels"
    if split.empty:
        yield f"{name}: {counted(split.empty, 'row')} with an empty text"
    if split.unknown_rate is not None and split.unknown_rate > UNKNOWN_RATE:
        yield (
            f"{name}: {split.unknown_rate:.1%} of the tokens are unknown in the vocabulary: "
            "check its language"
        )
    if (split.truncated_rate or 0) > TRUNCATED_RATE:
        yield (
            f"{name}: {_share(split)} longer than max_length and truncated: model.max_length = "
            f"{split.enough_tokens} truncates at most 1 % of the rows, for {split.enough_cost:.2f} "
            "times the tokens"
        )
    mean = sum(split.labels.values()) / max(len(split.labels), 1)
    rare = [label for label, count in split.labels.items() if count < RARE_LABEL * mean]
    if rare:
        yield f"{name}: labels with less than 10 % of the mean count: {', '.join(rare[:5])}"


def _share(split: SplitReport) -> str:
    rate = f"({split.truncated_rate:.1%})"
    if split.tokenized < split.rows:
        return f"{split.truncated} of {split.tokenized:,} tokenized rows {rate}"
    return f"{counted(split.truncated or 0, 'row')} {rate}"


def is_config(name: str) -> bool:
    """Return whether a name is a recipe or a settings file."""
    return name in recipes() or Path(name).suffix in SUFFIXES


def check_config(
    name: str, overrides: list[str], progress: Progress, rows: Path | None = None
) -> DataReport:
    """Report on the data files of a config, tokenized as in training.

    `rows` is a csv file to write, with the rows that are also in an earlier split.

    Raises:
        PipeError: the config or the data are invalid.
    """
    check_leaks_file(rows)
    config = load_config(name, overrides)
    sources = config.sources()
    labels = class_labels(config.task.labels, sources["train"])
    tokenizer = make_tokenizer(config.model, sources["train"])
    # Pretraining splits long texts instead of truncating them.
    length = config.model.max_length if task_type(config.task.kind).predicts else UNLIMITED
    encoder = TextEncoder(tokenizer, max_length=length, type_ids=False)
    report = data_report(sources, encoder, labels, progress)
    report = _with_near_duplicates(report, sources, config.data.near_duplicates, progress)
    if rows is not None:
        write_leaks(sources, rows, progress)
    return report


def _with_near_duplicates(
    report: DataReport, sources: Mapping[str, Source], threshold: float, progress: Progress
) -> DataReport:
    if not threshold:
        return report
    rows = {name: split.rows for name, split in report.splits.items()}
    found = near_duplicates(sources, rows, threshold, progress)
    return report.model_copy(update={"findings": (*report.findings, *found)})


def check_files(
    paths: Sequence[Path],
    overrides: Sequence[str],
    progress: Progress,
    rows: Path | None = None,
) -> DataReport:
    """Report on data files without a config; `rows` as in `check_config`.

    Raises:
        PipeError: an override is not columns.NAME=COLUMN, or a file cannot be read.
    """
    check_leaks_file(rows)
    chosen: dict[str, str | int] = {}
    for override in overrides:
        key, _, column = override.partition("=")
        name = key.removeprefix("data.").removeprefix("columns.")
        if name not in ColumnSettings.model_fields:
            message = f"--set {override}: with data files only columns can be set"
            raise ConfigError(message, "for example --set columns.text=0 --set columns.label=1")
        chosen[name] = int(column) if column.isdecimal() else column
    columns = Columns(**ColumnSettings.model_validate(chosen).model_dump())
    sources = {str(path): Source(path=path, columns=columns) for path in paths}
    report = data_report(sources, None, None, progress)
    threshold = DataSettings.model_fields["near_duplicates"].default
    report = _with_near_duplicates(report, sources, threshold, progress)
    if rows is not None:
        write_leaks(sources, rows, progress)
    return report
