"""The scores of predicted spans."""

import numpy as np
from numpy.typing import NDArray

from pipework.tasks.evaluation import Evaluation, class_reports
from pipework.tasks.kinds import Metric, Reported, Score
from pipework.tasks.metrics import Tally
from pipework.tasks.spans import TokenSpans


def span_evaluation(
    inputs: int, metric: Metric, tally: Tally, true: TokenSpans, found: TokenSpans, tokens: int
) -> Evaluation:
    """Return the scores of spans.

    Args:
        inputs: number of inputs.
        metric: the metric of the task.
        tally: spans with exact ends and type; the true spans include those that no tags find.
        true: the true spans of all inputs.
        found: the predicted ones.
        tokens: number of tokens of all inputs.
    """
    scores: dict[Score, float] = {
        Metric.MICRO_F1: tally.micro_f1,
        Metric.MACRO_F1: tally.macro_f1,
        Reported.OVERLAP_F1: _overlap_f1(true, found, tokens, int(tally.true_C.sum())),
    }
    classes = class_reports(tally, true.names)
    return Evaluation(rows=inputs, metric=metric, scores=scores, classes=classes)


def _overlap_f1(true: TokenSpans, found: TokenSpans, tokens: int, true_spans: int) -> float:
    """Return the micro-F1 where a span is right if it shares a token with one of its type."""
    same = np.concatenate(([0], np.cumsum(_types(true, tokens) == _types(found, tokens))))
    true_hits, found_hits = (
        int((same[spans.last + 1] > same[spans.first]).sum()) for spans in (true, found)
    )
    recall = true_hits / max(1, true_spans)
    precision = found_hits / max(1, len(found.first))
    return 2 * precision * recall / max(precision + recall, np.finfo(float).tiny)


def _types(spans: TokenSpans, tokens: int) -> NDArray[np.intp]:
    """Return the type of the span of each token; -1 for other tokens."""
    types = np.full(tokens, -1)
    lengths = spans.last + 1 - spans.first
    starts = np.repeat(spans.first - (np.cumsum(lengths) - lengths), lengths)
    types[starts + np.arange(len(starts))] = np.repeat(spans.types, lengths)
    return types
