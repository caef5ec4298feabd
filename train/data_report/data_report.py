"""Check the data files before training.

Texts are compared without regard to case and white space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import combinations
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipework.data.examples import Source
from pipework.progress import Progress
from pipework.run_folder.read_options import Format
from pipework.settings import Settings, load_settings
from pipework.tasks.registry import task_type
from pipework.text.encoding import TextEncoder
from pipework.train.config.data import (
    NEAR_DUPLICATES,
    ReadingSettings,
    Similarity,
    TaskSettings,
    read_labels,
)
from pipework.train.config.run_config import load_config
from pipework.train.data.disk_cache import cache_key, cached_text, source_content
from pipework.train.data.labels import check_labels, class_labels
from pipework.train.data.tokenizer import make_tokenizer
from pipework.train.data_report.csv_file import check_csv_file
from pipework.train.data_report.file_stats import FileStats
from pipework.train.data_report.findings import findings
from pipework.train.data_report.leaks import write_leaks
from pipework.train.data_report.near_duplicates import near_duplicates
from pipework.train.data_report.records import DataReport, SharedRows, SplitReport, ValueStats
from pipework.train.data_report.span_stats import SpanStats

ENOUGH_RATE = 0.01  # of the rows may be longer than a proposed max_length
STEP = 8  # tokens, to which a proposed max_length is rounded up
UNLIMITED = 1 << 30  # tokens: a max_length that never truncates


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
    spans: dict[str, SpanStats] = {}
    for name, source in sources.items():
        stats = FileStats.of(source, labels, whole, progress)
        _, rows_U = texts[name] = stats.texts()
        duplicates, spans[name] = int(rows_U.sum()) - len(rows_U), stats.spans
        splits[name] = _split(stats, source, limit, duplicates=duplicates)
    shared = tuple(
        SharedRows(
            earlier=first,
            later=second,
            rows=_common(texts[first][0], *texts[second]),
            templates=spans[second].rows_shared_with(spans[first]),
        )
        for first, second in combinations(sources, 2)
    )
    return DataReport(
        splits=splits, shared=shared, findings=tuple(findings(splits, shared, labels or ()))
    )


def _common(
    earlier_U: NDArray[np.int64], later_U: NDArray[np.int64], rows_U: NDArray[np.int64]
) -> int:
    """Count the rows of the later file whose text is also in the earlier file."""
    return int(rows_U[np.isin(later_U, earlier_U, assume_unique=True)].sum())


def _has_single_texts(source: Source) -> bool:
    reading = source.reading
    return reading.text_pair is None and reading.entities is None and not reading.marked


def _split(stats: FileStats, source: Source, limit: int, *, duplicates: int) -> SplitReport:
    tokens, tokenized = stats.tokens, stats.tokens.rows
    unknown = (
        None if stats.unknown is None else stats.unknown / max(tokens.total_up_to(UNLIMITED), 1)
    )
    held_out = source.part is not None and source.part.held_out  # train has counts of the file
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
        windows=tokens.windows(limit) if tokenized and _has_single_texts(source) else None,
        unknown_rate=unknown,
        empty=stats.empty,
        duplicates=duplicates,
        conflicting=stats.conflicting(),
        header=stats.header() if _may_have_header(source) else None,
        headers=stats.headers,
        dropped=_dropped(source, stats.characters.rows),
        skipped=0 if held_out else source.skipped_rows(),
        disputed=0 if held_out else source.disputed_rows(),
        defects=dict(stats.defects),
        same_tokens=stats.same_tokens(),
        without_labels=stats.without_labels,
        overlapping=stats.spans.overlapping,
        inside_words=stats.spans.inside_words,
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


class CheckedData(ReadingSettings):
    """How data files without a config are read and compared, as in [data] of `pipe train`."""

    near_duplicates: Similarity = NEAR_DUPLICATES


class FileCheckSettings(Settings):
    """Settings of `pipe check FILE`."""

    task: TaskSettings = TaskSettings()
    data: CheckedData = CheckedData()


def check_config(
    name: str, overrides: list[str], progress: Progress, rows: Path | None = None
) -> DataReport:
    """Report on the data files of a config, tokenized as in training.

    `rows` is a csv file to write, with the rows that are also in an earlier split.

    Raises:
        PipeError: the config or the data are invalid.
    """
    check_csv_file(rows)
    config = load_config(name, overrides)
    sources = config.sources()
    labels = class_labels(config.task.labels, sources["train"])
    check_labels(labels, sources, configured=config.task.labels is not None)
    labels = sources["train"].task.data_names(labels)
    tokenizer = make_tokenizer(config.model, sources["train"], progress)
    # Pretraining splits long texts instead of truncating them.
    length = config.model.max_length if task_type(config.task.kind).predicts else UNLIMITED
    encoder = TextEncoder(tokenizer, max_length=length, type_ids=False)
    report = data_report(sources, encoder, labels, progress)
    return _compared(report, sources, config.data.near_duplicates, rows, progress)


def _compared(
    report: DataReport,
    sources: Mapping[str, Source],
    threshold: float,
    leaks: Path | None,
    progress: Progress,
) -> DataReport:
    """Add the findings about near duplicates, and write the file of leaks, if there is one."""
    if threshold:
        counts = {name: split.rows for name, split in report.splits.items()}
        found = near_duplicates(sources, counts, threshold, progress)
        report = report.model_copy(update={"findings": (*report.findings, *found)})
    if leaks is not None:
        write_leaks(sources, leaks, progress)
    return report


def check_files(
    paths: Sequence[Path],
    overrides: Sequence[str],
    progress: Progress,
    rows: Path | None = None,
) -> DataReport:
    """Report on data files without a config; `rows` as in `check_config`.

    Raises:
        PipeError: an override is invalid, or a file cannot be read.
    """
    check_csv_file(rows)
    settings = load_settings(FileCheckSettings, None, overrides)
    task, data = settings.task, settings.data
    named = read_labels(task.labels) if isinstance(task.labels, Path) else task.labels
    sources = {str(path): data.source(path, task.kind, labels=named or ()) for path in paths}
    report = data_report(sources, None, named, progress)
    return _compared(report, sources, data.near_duplicates, rows, progress)
