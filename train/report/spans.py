"""Spans in the report of a run: the baseline and the errors.

The baseline is a dictionary of the spans in the train rows, as in CoNLL-2003 (Tjong Kim Sang and
De Meulder, https://aclanthology.org/W03-0419): a span that has a single type in the train rows is
found wherever its words are, the longest first.
"""

import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipework.data.examples import Example
from pipework.tasks.labels import Label, spans_of
from pipework.tasks.outputs import NO_PLACE, LocatedOutputs, Outputs, Places
from pipework.tasks.single_label import CERTAIN
from pipework.tasks.spans import OUTSIDE, Span
from pipework.tasks.tokens import TokenTask
from pipework.text.encoding import TextEncoder
from pipework.train.report.baseline import Baseline
from pipework.train.report.verdict import ScoredRows
from pipework.train.report.wrong_predictions import WrongPrediction, worst_errors, wrong_spans
from pipework.train.scored_checkpoint import ScoredCheckpoint, TrainedRun, encoder_of

SLACK = 2  # a span may have more white space than in the train rows
PREFIX = 4  # characters


@dataclass(frozen=True, kw_only=True)
class SpanDictionary:
    """Spans and their types.

    Attributes:
        types: the type of each span by its text, with a blank for white space.
        longest: number of characters of the longest span by the first characters of its text.
    """

    types: Mapping[str, str]
    longest: Mapping[str, int]

    @classmethod
    def of(cls, rows: Iterable[Example]) -> "SpanDictionary":
        """Return the dictionary of labelled rows, without spans of several types."""
        found: dict[str, set[str]] = {}
        longest: dict[str, int] = {}
        for row in rows:
            for span in spans_of(row.label):
                key = _key(row.text[span.start : span.end])
                found.setdefault(key, set()).add(span.label)
                longest[key[:PREFIX]] = max(longest.get(key[:PREFIX], 0), len(key))
        types = {text: next(iter(labels)) for text, labels in found.items() if len(labels) == 1}
        return cls(types=types, longest=longest)

    def spans(self, text: str, places_T2: Places) -> tuple[Span, ...]:
        """Return the spans of a text that begin and end with its words, given their places."""
        words = places_T2[places_T2[:, 0] != NO_PLACE]
        starts, ends = words[:, 0].tolist(), words[:, 1].tolist()
        found, done = list[Span](), 0
        for word, start in enumerate(starts):
            if start < done:
                continue
            prefix = _key(text[start : start + SLACK * PREFIX])
            longest = max(self.longest.get(prefix[:size], 0) for size in range(1, PREFIX + 1))
            last = bisect_right(ends, start + SLACK * longest)
            for end in reversed(ends[word:last]):
                if (label := self.types.get(_key(text[start:end]))) is not None:
                    found.append(Span(start, end, label))
                    done = end
                    break
        return tuple(found)


def _key(text: str) -> str:
    return " ".join(text.split())


def span_baseline(trained: TrainedRun, scored: ScoredCheckpoint) -> Baseline | None:
    """Return a dictionary of the train spans and its outputs, for a model that finds spans."""
    if not isinstance(trained.task, TokenTask) or not trained.run.config.train.report:
        return None
    sources = trained.run.config.sources()
    train, examples = ([*sources[split].rows()] for split in ("train", scored.judged.split))
    return dictionary_baseline(train, examples, scored.judged, trained.task, encoder_of(trained))


def dictionary_baseline(
    train: Sequence[Example],
    examples: Sequence[Example],
    rows: ScoredRows,
    task: TokenTask,
    encoder: TextEncoder,
) -> Baseline:
    """Return a dictionary of the train rows and its outputs for the scored `rows` of `examples`."""
    started_s = time.perf_counter()
    dictionary = SpanDictionary.of(train)
    places = encoder.places(examples, task.tagged)
    found: list[tuple[str, Label | None]] = [
        ("", dictionary.spans(row.text, places_T2))
        for row, places_T2 in zip(examples, places, strict=True)
    ]
    tags = task.token_truth(found, places, encoder.max_length)
    tags_R = np.concatenate(
        [row[: len(places_T2)] for row, places_T2 in zip(tags, places, strict=True)]
    )
    values = np.full((len(tags_R), len(task.labels)), -CERTAIN, np.float32)
    outside = task.labels.index(OUTSIDE)
    values[np.arange(len(tags_R)), np.where(tags_R >= 0, tags_R, outside)] = CERTAIN
    outputs = Outputs(values, rows.outputs.offsets)
    return Baseline(
        name="a dictionary of the train spans",
        split=rows.split,
        evaluation=task.evaluate(outputs, rows.truth),
        outputs=outputs,
        task=task,
        rows=len(train),
        all_rows=len(train),
        seconds=time.perf_counter() - started_s,
    )


def errors_on_dev(
    trained: TrainedRun, scored: ScoredCheckpoint, examples: Sequence[Example]
) -> list[WrongPrediction]:
    """Return at most MAX_ERRORS errors on the rows of dev; see `worst_errors` and `wrong_spans`."""
    task, outputs = scored.task, scored.outputs
    if not isinstance(task, TokenTask):
        return worst_errors(examples, outputs.values, trained.data.dev.truth, task)
    places = np.concatenate(encoder_of(trained).places(examples, task.tagged))
    texts = [example.text for example in examples]
    located = LocatedOutputs(outputs.values, outputs.offsets, places, texts)
    return wrong_spans(examples, task.decode(located))
