"""Token classification: spans of a text and their types, such as names.

Shapes: N inputs, R rows of all inputs (one for each token), T tokens of an input, C tags, K types.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from pipework.errors import DataError
from pipework.progress import counted
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Metric, Words
from pipework.tasks.labels import NO_LABEL, Label, spans_of
from pipework.tasks.metrics import Tally
from pipework.tasks.outputs import NO_PLACE, LocatedOutputs, Outputs, Places
from pipework.tasks.predictions import (
    FoundSpan,
    PredictedColumns,
    Prediction,
    Spans,
    span_columns,
)
from pipework.tasks.single_label import CERTAIN, SingleLabelTask
from pipework.tasks.span_scores import span_evaluation
from pipework.tasks.spans import OUTSIDE, Span, TagScheme, TokenSpans, bio_tags, parse_spans
from pipework.tasks.task import Floats, Scorer, Truth

MOST_LOST = np.iinfo(np.int16).max
UNLABELLED = NO_LABEL - 1  # a token of a span that does not begin and end with tokens


class TokenTask(SingleLabelTask):
    """The best valid sequence of tags of each text; a span of tokens with its tags is a prediction.

    With `inner_begins`, which imported models have, I-PER may begin a span, as in IOB1. Special
    tokens have no tag, and only the first token of each of the `words` has one, so that spans
    begin and end with words. The truth of an input is the tag of each token, and then
    the number of spans of each type that no sequence of tags finds: beyond the end of a truncated
    text, inside of a token, or overlapping another span.
    """

    kind: Literal["tokens"] = "tokens"  # type: ignore[assignment]
    words: Words = Words.LETTERS
    inner_begins: bool = False
    fewest_labels: ClassVar[int] = 1
    rows_per_token: ClassVar[bool] = True
    truth_type: ClassVar[type[np.generic]] = np.int16
    baseline: ClassVar[str] = ""
    problem_type: ClassVar[str] = ""
    change_columns: ClassVar[tuple[str, ...]] = ("tags", "prob.")

    @model_validator(mode="after")
    def _has_outside(self) -> Self:
        if OUTSIDE not in self.labels:
            message = f"expected a tag {OUTSIDE!r} outside of spans, found {', '.join(self.labels)}"
            raise ValueError(message)
        return self

    @property
    def truth_shape(self) -> tuple[int, ...]:
        """A tag for each token that an input may have, and a number for each type."""
        return (-1,)

    @property
    def tagged(self) -> Words:
        """The words; see `Task`."""
        return self.words

    @cached_property
    def scheme(self) -> TagScheme:
        """The tags."""
        return TagScheme.of(self.labels, inner_begins=self.inner_begins)

    @classmethod
    def logit_names(cls, names: Sequence[str]) -> tuple[str, ...]:
        """Return the tags of types; see `Task`."""
        return bio_tags(names)

    @classmethod
    def data_names(cls, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the types of tags; see `Task`."""
        return TagScheme.of(labels).types

    @classmethod
    def applicable_metrics(cls, labels: Sequence[str]) -> tuple[Metric, ...]:
        """Return the F1 of spans with exact ends and type, as in seqeval, and its mean of types."""
        return (Metric.MICRO_F1, Metric.MACRO_F1)

    @classmethod
    def parse_label(cls, value: object, separator: str | None, vector: Sequence[str] = ()) -> Label:
        """Return the spans; see `Task`."""
        return parse_spans(value)

    @classmethod
    def fit_label(cls, label: Label, text: str) -> Label:
        """Return the spans without white space at their ends; see `Task`."""
        return tuple(span.strip(text) for span in label if isinstance(span, Span))

    @classmethod
    def agreed(cls, answers: Sequence[object]) -> object:
        """Return the spans of the first annotator; see `Task`."""
        return answers[0]

    def token_truth(
        self, rows: Sequence[tuple[str, Label | None]], places: Sequence[Places], width: int
    ) -> Truth:
        """Return the tags of tokens and the numbers of lost spans, int16 [N, width + K]."""
        types = {name: index for index, name in enumerate(self.scheme.types)}
        truth = np.full((len(rows), width + len(types)), NO_LABEL, np.int16)
        truth[:, width:] = 0
        outside = self.labels.index(OUTSIDE)
        for (at, spans), places_T2, row in zip(rows, places, truth, strict=True):
            tags_T, lost_K = row[: len(places_T2)], row[width:]
            tags_T[places_T2[:, 0] != NO_PLACE] = outside
            # The longest of overlapping spans counts.
            for span in sorted(_spans(at, spans), key=lambda span: (span.start - span.end, span)):
                if span.label not in types:
                    message = f"{at} has a span {span.label!r}, which the model lacks"
                    raise DataError(message, f"known labels: {', '.join(types)}")
                touched = tokens_of(span, places_T2)
                cut = len(places_T2) == width and not is_read(span, places_T2)
                fits = not cut and span_fits(span, places_T2[touched])
                if fits and (tags_T[touched] == outside).all():
                    tags_T[touched] = self.scheme.tags_of(span.label, len(touched))
                    continue
                lost_K[types[span.label]] += lost_K[types[span.label]] < MOST_LOST
                tags_T[touched[tags_T[touched] == outside]] = UNLABELLED
        return truth

    def window_truth(
        self, truth: Truth, counts_N: Sequence[int], lengths_R: Sequence[int], width: int
    ) -> Truth:
        """Return the labels of windows; lost spans count in the first one. See `Task`."""
        types, firsts_N = len(self.scheme.types), np.cumsum([0, *counts_N[:-1]])
        windows = np.full((len(lengths_R), width + types), NO_LABEL, np.int16)
        windows[:, width:] = 0
        windows[firsts_N, width:] = truth[:, -types:]
        tokens_N = np.add.reduceat(lengths_R, firsts_N)
        inside_RW = np.arange(width) < np.array(lengths_R)[:, None]
        windows[:, :width][inside_RW] = np.concatenate(
            [row[:tokens] for row, tokens in zip(truth, tokens_N, strict=True)]
        )
        return windows

    def decode(self, outputs: Outputs, top_k: int | None = None) -> list[Prediction]:
        """Return the spans of each input; see `Task`."""
        found: list[list[FoundSpan]] = [[] for _ in range(len(outputs))]
        located = outputs if isinstance(outputs, LocatedOutputs) else None
        rows = np.arange(len(outputs.values))
        if located is not None:
            rows = np.flatnonzero(located.places[:, 0] != NO_PLACE)
        spans, scores_S = self._spans(outputs, rows)
        inputs = outputs.inputs
        ends = np.stack((rows[spans.first], rows[spans.last]), axis=1)
        for (first, last), label, score in zip(
            ends.tolist(), spans.labels, scores_S.tolist(), strict=True
        ):
            row = int(inputs[first])
            start, end = first - int(outputs.offsets[row]), last - int(outputs.offsets[row]) + 1
            text = ""
            if located is not None:
                start, end = int(located.places[first, 0]), int(located.places[last, 1])
                text = located.texts[row][start:end]
            found[row].append(FoundSpan(start=start, end=end, label=label, score=score, text=text))
        return [Spans(spans=tuple(row)) for row in found]

    def _spans(self, outputs: Outputs, rows: NDArray[np.intp]) -> tuple[TokenSpans, Floats]:
        """Return the spans of these rows and their scores, without those below `min_scores`."""
        tags = self._tags(outputs, rows)
        spans = self.scheme.spans(tags, outputs.inputs[rows])
        logits = np.nan_to_num(outputs.values[rows])  # one input must not change the others
        scores = self.probabilities(logits)[np.arange(len(rows)), tags].astype(np.float64)
        totals_R = np.concatenate(([0.0], np.cumsum(scores)))
        ends_S = spans.last + 1
        scores_S = (totals_R[ends_S] - totals_R[spans.first]) / (ends_S - spans.first)
        reached_S = scores_S >= self._limits[tags[spans.first]]
        return spans.chosen(reached_S), np.asarray(scores_S[reached_S])

    def _tags(self, outputs: Outputs, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        logits = np.nan_to_num(outputs.values[rows].astype(np.float64))
        scores = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        return self.scheme.best(scores, outputs.inputs[rows])

    def has_spans(self, outputs: Outputs) -> NDArray[np.bool_]:
        """Return which inputs may have spans, [N]: a token is not best outside of all."""
        return outputs.max_per_input(self.in_spans(outputs).astype(np.float64)) > 0

    def in_spans(self, outputs: Outputs) -> NDArray[np.bool_]:
        """Return which tokens are best in a span, [R]."""
        return np.asarray((self.scheme.type_C >= 0)[outputs.values.argmax(axis=1)])

    def columns(self, outputs: Outputs) -> PredictedColumns:
        """Return the spans of each input, in the order of the text; see `Task`."""
        return span_columns(self.decode(outputs))

    def _compared(
        self, outputs: Outputs, truth: Truth
    ) -> tuple[NDArray[np.intp], TokenSpans, TokenSpans, Floats]:
        """Return the rows with labels, their true spans, and their predicted spans with scores."""
        true_R = np.concatenate(
            [row[:length] for row, length in zip(np.asarray(truth), outputs.counts, strict=True)]
            or [[]]
        ).astype(np.int64)
        rows = np.flatnonzero(true_R != NO_LABEL)
        true = self.scheme.spans(true_R[rows], outputs.inputs[rows])
        return rows, true, *self._spans(outputs, rows)

    def predicted_labels(self, logits_NC: NDArray[np.floating]) -> NDArray[np.bool_]:
        """Return the best tag of each token, [R, C]; the lowest scores are those of spans."""
        return np.asarray(np.arange(logits_NC.shape[1]) == logits_NC.argmax(axis=1)[:, None])

    def changed_inputs(self, before: Outputs, after: Outputs, most: int) -> NDArray[np.intp]:
        """Return the inputs with another best tag of a token, or with other spans."""
        rows = np.arange(len(before.values))
        found, others = (
            self._spans(outputs, rows)[0].keys(len(rows)) for outputs in (before, after)
        )
        first = np.setxor1d(found, others) // len(self.scheme.types) // (len(rows) + 1)
        tags = super().changed_inputs(before, after, most)
        return np.union1d(tags, before.inputs[first]).astype(np.intp)

    def threshold_columns(
        self, outputs: Outputs, truth: Truth
    ) -> list[tuple[Floats, NDArray[np.bool_]]]:
        """Return for each type the scores of the predicted spans, and whether they are right."""
        rows, true, found, scores_S = self._compared(outputs, truth)
        right_S = np.isin(found.keys(len(rows)), true.keys(len(rows)))
        return [
            (scores_S[found.types == index], right_S[found.types == index])
            for index in range(len(self.scheme.types))
        ]

    def decided(self, limits: Sequence[float]) -> Self:
        """Return the task with the lowest score of each type."""
        limits_C = np.append(limits, 0.0)[self.scheme.type_C].tolist()
        return self.model_copy(update={"min_scores": tuple(limits_C)})

    def tally(self, outputs: Outputs, truth: Truth) -> Tally:
        """Return the right, true and predicted spans by type."""
        return _tally(self._counts(outputs, truth))

    def abstained(self, outputs: Outputs) -> int:
        """Return 0: a text may have no span; see `Task`."""
        return 0

    def _counts(self, outputs: Outputs, truth: Truth) -> NDArray[np.int64]:
        """Return right, true and predicted spans of each input by type, [3, N, K]."""
        types = len(self.scheme.types)
        truth_NW = np.asarray(truth)
        rows, true, found, _ = self._compared(outputs, truth)
        inputs = outputs.inputs[rows]
        counts = np.zeros((3, len(outputs), types), np.int64)
        right = np.isin(true.keys(len(rows)), found.keys(len(rows)))
        np.add.at(counts[0], (inputs[true.first[right]], true.types[right]), 1)
        for total, one in zip(counts[1:], (true, found), strict=True):
            np.add.at(total, (inputs[one.first], one.types), 1)
        counts[1] += truth_NW[:, truth_NW.shape[1] - types :].astype(np.int64)
        return counts

    def evaluate(self, outputs: Outputs, truth: Truth) -> Evaluation:
        """Score spans with exact ends and type; see `Task`."""
        tally = _tally(self._counts(outputs, truth))
        rows, true, found, _ = self._compared(outputs, truth)
        return span_evaluation(len(outputs), self.metric, tally, true, found, len(rows))

    def scorer(self, outputs: Outputs, truth: Truth) -> Scorer:
        """Return a function that scores inputs; see `Task`."""
        counts = self._counts(outputs, truth)
        return lambda rows: _score(self.metric, _tally(counts[:, rows]))

    def constant(self, truth: Truth) -> tuple[str, Floats]:
        """Return the logits of no span."""
        logits_C = np.full(len(self.labels), -CERTAIN)
        logits_C[self.scheme.type_C < 0] = CERTAIN
        return "predicting no span", logits_C

    def label_counts(self, truth: Truth) -> NDArray[np.int64]:
        """Return the number of tokens with each tag, [C]; see `Task`."""
        tags = np.asarray(truth, np.int64)[:, : -len(self.scheme.types)].ravel()
        return np.bincount(tags[tags >= 0], minlength=len(self.labels))

    def describe_decision(self) -> str:
        """Return the number of types of spans."""
        return f"spans of {counted(len(self.scheme.types), 'type')}, best valid sequence of tags"

    def describe_output(self) -> str:
        """Return the types of spans, and their lowest scores."""
        names = ", ".join(f"`{name}`" for name in self.scheme.types)
        limits = f" ({self.limits})" if self.limits else ""
        return f"spans of {counted(len(self.scheme.types), 'type')}: {names}{limits}"

    @property
    def limits(self) -> str:
        """The lowest scores; see `Task`."""
        if len(self.min_scores) <= 1:
            return "".join(f"no span below a score of {score:.4g}" for score in self.min_scores)
        limits = dict(zip(self.scheme.type_C.tolist(), self.min_scores, strict=True))
        each = ((limits[index], name) for index, name in enumerate(self.scheme.types))
        limited = [f"{score:.4g} for {name}" for score, name in each if score]
        return f"no span below {', '.join(limited)}" if limited else ""


def _spans(at: str, label: Label | None) -> list[Span]:
    if not isinstance(label, tuple):
        message = f"{at}: expected spans, found {label!r}"
        raise DataError(message, "write a row without spans as an empty list, []")
    return spans_of(label)


def tokens_of(span: Span, places_T2: Places) -> NDArray[np.intp]:
    """Return the tokens with a place that share characters with a span."""
    starts, ends = places_T2.T
    return np.flatnonzero((starts < span.end) & (ends > span.start) & (starts != NO_PLACE))


def is_read(span: Span, places_T2: Places) -> bool:
    """Return whether no character of a span is before the first or after the last token."""
    inside_T2 = places_T2[places_T2[:, 0] != NO_PLACE]
    if not len(inside_T2):
        return False
    return bool(inside_T2[0, 0] <= span.start and span.end <= inside_T2[:, 1].max())


def span_fits(span: Span, places_S2: Places) -> bool:
    """Return whether the tokens that a span touches are all within it, at least one."""
    starts, ends = places_S2.T
    return bool(len(starts) and starts[0] >= span.start and ends[-1] <= span.end)


def _tally(counts: NDArray[np.int64]) -> Tally:
    hits_C, true_C, predicted_C = counts.sum(axis=1)
    return Tally(hits_C=hits_C, true_C=true_C, predicted_C=predicted_C)


def _score(metric: Metric, tally: Tally) -> float:
    return tally.macro_f1 if metric is Metric.MACRO_F1 else tally.micro_f1
