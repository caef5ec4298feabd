"""What the data look like before anything is trained on them.

Texts are compared as they would be by eye: case and white space folded. Of each text only a digest
of 8 bytes is kept, so that millions of rows fit in memory.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from pydantic import BaseModel, ConfigDict

from pipework.encoding import TextEncoder
from pipework.errors import DataError
from pipework.examples import Example, Source, chunks, resolve_label

CHUNK = 4096
UNKNOWN_RATE = 0.05
TRUNCATED_RATE = 0.05
RARE_LABEL = 0.1


class SplitReport(BaseModel):
    """One file: rows by label, lengths, and what stands in it twice.

    `characters` and, where there is a tokenizer, `tokens` are the 50th, 95th and 100th percentile
    of the lengths.
    """

    model_config = ConfigDict(frozen=True)

    rows: int
    labels: dict[str, int]
    characters: tuple[int, int, int]
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


def data_report(
    sources: Mapping[str, Source],
    encoder: TextEncoder | None = None,
    labels: Sequence[str] | None = None,
) -> DataReport:
    """Read every file once and say what a person should know before training on it.

    Args:
        sources: the files by split name.
        encoder: counts tokens, truncated rows and unknown tokens.
        labels: names of the classes, where the files hold numbers.

    Raises:
        DataError: a row that cannot be read; the message names file and line.
    """
    readings = {name: _Reading(labels) for name in sources}
    for name, source in sources.items():
        for chunk in chunks(source.rows(), CHUNK):
            readings[name].add(chunk, encoder)
        if not readings[name].counts:
            message = f"{source.path} holds no rows"
            raise DataError(message, "check the file, and whether its first line is a header")
    splits = {name: reading.report() for name, reading in readings.items()}
    shared = tuple(
        Shared(earlier=first, later=second, rows=readings[second].rows_in(readings[first]))
        for first, second in combinations(readings, 2)
    )
    return DataReport(splits=splits, shared=shared, findings=tuple(_findings(splits, shared)))


class _Reading:
    """One file while it is read."""

    def __init__(self, labels: Sequence[str] | None) -> None:
        self._texts: dict[bytes, set[str]] = defaultdict(set)
        self.counts: Counter[bytes] = Counter()
        self._names = labels
        self._index = {label: place for place, label in enumerate(labels or ())}
        self._labels: Counter[str] = Counter()
        self._characters: list[int] = []
        self._tokens: list[int] = []
        self._limit = 0
        self._unknown: int | None = None
        self._empty = 0

    def add(self, chunk: Sequence[Example], encoder: TextEncoder | None) -> None:
        for example in chunk:
            self._characters.append(len(example.text) + len(example.text_pair or ""))
            self._empty += not example.text.strip()
            label = self._label(example)
            digest = _digest(example)
            self._texts[digest].add(label)
            self.counts[digest] += 1
            self._labels[label] += 1
        if encoder is not None:
            self._limit = encoder.max_length
            encodings = encoder.encode(chunk)
            self._tokens += [len(encoding) for encoding in encodings]
            if encoder.unknown_id is not None:
                ids = np.concatenate([encoding.ids for encoding in encodings])
                found = int((ids == encoder.unknown_id).sum())
                self._unknown = found + (self._unknown or 0)

    def rows_in(self, other: "_Reading") -> int:
        """Count the rows whose text stands in another file."""
        return sum(self.counts[digest] for digest in self.counts.keys() & other.counts.keys())

    def _label(self, example: Example) -> str:
        found = example.label or "(none)"
        place = resolve_label(found, self._index)
        return found if place is None or self._names is None else self._names[place]

    def report(self) -> SplitReport:
        rows, tokens = len(self._characters), sum(self._tokens)
        return SplitReport(
            rows=rows,
            labels=dict(sorted(self._labels.items())),
            characters=_percentiles(self._characters),
            tokens=_percentiles(self._tokens) if self._tokens else None,
            truncated=sum(n >= self._limit for n in self._tokens) if self._tokens else None,
            unknown_rate=None if self._unknown is None else self._unknown / max(tokens, 1),
            empty=self._empty,
            duplicates=rows - len(self._texts),
            conflicting=sum(len(labels) > 1 for labels in self._texts.values()),
        )


def _digest(example: Example) -> bytes:
    texts = (example.text, example.text_pair or "")
    folded = "\0".join(" ".join(text.casefold().split()) for text in texts)
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _percentiles(values: Sequence[int]) -> tuple[int, int, int]:
    median, high, top = (int(np.percentile(values, q)) for q in (50, 95, 100))
    return median, high, top


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
        yield f"{name}: {split.conflicting} texts carry more than one label"
    if split.empty:
        yield f"{name}: {split.empty} rows have an empty text"
    if split.unknown_rate is not None and split.unknown_rate > UNKNOWN_RATE:
        yield (
            f"{name}: {split.unknown_rate:.1%} of the tokens are unknown to the vocabulary: "
            "is it that of another language?"
        )
    if split.truncated is not None and split.truncated > TRUNCATED_RATE * split.rows:
        yield f"{name}: {split.truncated} rows fill model.max_length and may be cut"
    mean = split.rows / max(len(split.labels), 1)
    rare = [label for label, count in split.labels.items() if count < RARE_LABEL * mean]
    if rare:
        yield f"{name}: labels with under a tenth of the mean count: {', '.join(rare[:5])}"
