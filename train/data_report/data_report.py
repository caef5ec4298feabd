"""What the data look like before anything is trained on them.

Texts are compared as they would be by eye: case and white space folded.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from pipework.data.examples import Source
from pipework.data.readers import Columns
from pipework.errors import ConfigError
from pipework.progress import Progress
from pipework.run_folder.task import TaskKind
from pipework.settings import SUFFIXES
from pipework.text.encoding import TextEncoder
from pipework.train.config.data import ColumnSettings
from pipework.train.config.run_config import load_config, recipes
from pipework.train.data.disk_cache import digest, name_of, recalled
from pipework.train.data.labels import class_labels
from pipework.train.data.tokenizer import make_tokenizer
from pipework.train.data_report.file_stats import Reading

UNKNOWN_RATE = 0.05
TRUNCATED_RATE = 0.05
RARE_LABEL = 0.1
WHOLE = 1 << 30  # tokens: the limit of a text that is not cut


class Values(BaseModel):
    """The numbers that a regression learns."""

    model_config = ConfigDict(frozen=True)

    smallest: float
    median: float
    largest: float
    mean: float


class SplitReport(BaseModel):
    """One file: rows by label, lengths, and what stands in it twice.

    `values` takes the place of `labels` for a regression. `characters` and, where there is a
    tokenizer, `tokens` are the 50th, 95th and 100th percentile of the lengths. Of a large file
    only `tokenized` rows were tokenized, spread evenly over it: `tokens`, `truncated` and
    `unknown_rate` are of those.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    labels: dict[str, int]
    values: Values | None
    characters: tuple[int, int, int]
    tokenized: int
    tokens: tuple[int, int, int] | None
    truncated: int | None
    unknown_rate: float | None
    empty: int
    duplicates: int
    conflicting: int


class Shared(BaseModel):
    """How many rows of a later file have a text that stands in an earlier one."""

    model_config = ConfigDict(frozen=True)

    earlier: str
    later: str
    rows: int


class DataReport(BaseModel):
    """All files, the rows of each that stand in an earlier one, and the findings in words."""

    model_config = ConfigDict(frozen=True)

    splits: dict[str, SplitReport]
    shared: tuple[Shared, ...]
    findings: tuple[str, ...]


def cached_report(
    sources: Mapping[str, Source],
    encoder: TextEncoder,
    tokenizer: str,
    labels: Sequence[str] | None,
    progress: Progress,
) -> DataReport:
    """Return the data report, kept beside the token cache: a second launch reads no row.

    Its name is a digest of the data files, how they are read, the tokenizer and this code.

    Raises:
        DataError: as `data_report`.
    """
    files = [(name, one.reading(), one.part, digest(one.path)) for name, one in sources.items()]
    parts = ("report", version("tokenizers"), tokenizer, files, encoder.max_length, labels)

    def make() -> str:
        return data_report(sources, encoder, labels, progress).model_dump_json()

    return DataReport.model_validate_json(recalled(name_of(parts), make))


def data_report(
    sources: Mapping[str, Source],
    encoder: TextEncoder | None,
    labels: Sequence[str] | None,
    progress: Progress,
) -> DataReport:
    """Read every file once and say what a person should know before training on it.

    Args:
        sources: the files by split name.
        encoder: counts tokens, truncated rows and unknown tokens.
        labels: names of the classes, where the files hold numbers.
        progress: hears of the bytes that were read.

    Raises:
        DataError: a row that cannot be read; the message names file and line.
    """
    limit = 0 if encoder is None else encoder.max_length
    splits: dict[str, SplitReport] = {}
    texts: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for name, source in sources.items():
        found = Reading.of(source, labels, encoder, progress)
        texts[name] = found.texts()
        splits[name] = _split(found, source, duplicates=_repeated(texts[name][1]), limit=limit)
    shared = tuple(
        Shared(earlier=first, later=second, rows=_common(texts[first][0], *texts[second]))
        for first, second in combinations(sources, 2)
    )
    return DataReport(splits=splits, shared=shared, findings=tuple(_findings(splits, shared)))


def _repeated(rows_U: NDArray[np.int64]) -> int:
    return int(rows_U.sum()) - len(rows_U)


def _common(
    earlier_U: NDArray[np.int64], later_U: NDArray[np.int64], rows_U: NDArray[np.int64]
) -> int:
    """Count the rows of the later file whose text stands in the earlier one."""
    return int(rows_U[np.isin(later_U, earlier_U, assume_unique=True)].sum())


def _split(found: Reading, source: Source, *, duplicates: int, limit: int) -> SplitReport:
    tokens, tokenized = found.tokens, found.tokens.rows
    unknown = None if found.unknown is None else found.unknown / max(tokens.total, 1)
    return SplitReport(
        rows=found.characters.rows,
        labels=dict(sorted(found.labels.items())),
        values=_values(found.values()) if source.kind is TaskKind.REGRESSION else None,
        characters=found.characters.percentiles(),
        tokenized=tokenized,
        tokens=tokens.percentiles() if tokenized else None,
        truncated=tokens.at_least(limit) if tokenized else None,
        unknown_rate=unknown,
        empty=found.empty,
        duplicates=duplicates,
        conflicting=found.conflicting(),
    )


def _values(values_N: NDArray[np.float64]) -> Values | None:
    known = values_N[~np.isnan(values_N)]
    if not len(known):
        return None
    return Values(
        smallest=float(known.min()),
        median=float(np.median(known)),
        largest=float(known.max()),
        mean=float(known.mean()),
    )


def _findings(splits: Mapping[str, SplitReport], shared: Sequence[Shared]) -> Iterable[str]:
    for name, split in splits.items():
        yield from _split_findings(name, split)
    for one in shared:
        if one.rows:
            yield (
                f"{one.rows} rows of {one.later} stand in {one.earlier} too: "
                f"scores on {one.later} are too good"
            )
    first, *others = splits
    for name in others:
        new = sorted(splits[name].labels.keys() - splits[first].labels.keys())
        if new:
            yield f"{name} has labels that {first} lacks: {', '.join(new[:5])}"


def _split_findings(name: str, split: SplitReport) -> Iterable[str]:
    if split.duplicates:
        yield f"{name}: {split.duplicates} rows repeat a text of an earlier row"
    if split.conflicting:
        yield f"{name}: {split.conflicting} texts stand in rows whose labels differ"
    if split.empty:
        yield f"{name}: {split.empty} rows have an empty text"
    if split.unknown_rate is not None and split.unknown_rate > UNKNOWN_RATE:
        yield (
            f"{name}: {split.unknown_rate:.1%} of the tokens are unknown to the vocabulary: "
            "is it that of another language?"
        )
    if split.truncated is not None and split.truncated > TRUNCATED_RATE * split.tokenized:
        yield f"{name}: {_share(split)} fill model.max_length and may be cut"
    mean = sum(split.labels.values()) / max(len(split.labels), 1)
    rare = [label for label, count in split.labels.items() if count < RARE_LABEL * mean]
    if rare:
        yield f"{name}: labels with under a tenth of the mean count: {', '.join(rare[:5])}"


def _share(split: SplitReport) -> str:
    if split.tokenized == split.rows:
        return f"{split.truncated} rows"
    return f"{split.truncated} of {split.tokenized} tokenized rows"


def is_config(name: str) -> bool:
    """Whether a name is a recipe's or a settings file's."""
    return name in recipes() or Path(name).suffix in SUFFIXES


def check_config(name: str, overrides: list[str], progress: Progress) -> DataReport:
    """Report on the files of a config, tokenized as training would.

    Raises:
        PipeError: for a config or data that cannot be used.
    """
    config = load_config(name, overrides)
    sources = config.sources()
    labels = class_labels(config.task.labels, sources["train"])
    tokenizer = make_tokenizer(config.model, sources["train"])
    whole = config.task.kind is TaskKind.PRETRAIN  # long texts are cut into several, and none lost
    length = WHOLE if whole else config.model.max_length
    encoder = TextEncoder(tokenizer, max_length=length, type_ids=False)
    return data_report(sources, encoder, labels, progress)


def check_files(paths: Sequence[Path], overrides: Sequence[str], progress: Progress) -> DataReport:
    """Report on files alone; `columns.NAME=COLUMN` says where their fields lie.

    Raises:
        PipeError: for an override that names no column, or a file that cannot be read.
    """
    given: dict[str, str | int] = {}
    for override in overrides:
        key, _, column = override.partition("=")
        name = key.removeprefix("data.").removeprefix("columns.")
        if name not in ColumnSettings.model_fields:
            message = f"--set {override}: beside files only columns can be set"
            raise ConfigError(message, "for example --set columns.text=0 --set columns.label=1")
        given[name] = int(column) if column.isdecimal() else column
    columns = Columns(**ColumnSettings.model_validate(given).model_dump())
    sources = {str(path): Source(path=path, columns=columns) for path in paths}
    return data_report(sources, None, None, progress)
