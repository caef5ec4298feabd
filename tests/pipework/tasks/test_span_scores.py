import random

import numpy as np
import pytest

from pipework.tasks.kinds import Metric
from pipework.tasks.metrics import Tally
from pipework.tasks.span_scores import span_evaluation
from pipework.tasks.spans import TokenSpans

TOKENS, LOST = 300, 3


def random_spans(generator):
    """Spans [start, end) of two types, in the order of the text."""
    spans, start = [], 0
    while (start := start + generator.randint(0, 4)) < TOKENS - 4:
        end = start + generator.randint(1, 4)
        spans.append((start, end, generator.randint(0, 1)))
        start = end
    return spans


def as_arrays(spans):
    first, end, types = np.array(spans, np.int64).reshape(-1, 3).T
    return TokenSpans(first, end - 1, types, ("LOC", "PER"))


def overlapping(spans, others):
    """Return the spans that share a token with another span of their type."""
    return [
        (start, end, kind)
        for start, end, kind in spans
        if any(start < to and at < end and kind == other for at, to, other in others)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_spans_with_other_ends_count_for_the_overlap(seed):
    generator = random.Random(seed)
    true, found = random_spans(generator), random_spans(generator)
    tally = Tally(
        hits_C=np.array([1, 2]),
        true_C=np.array([len(true), LOST]),  # three more, which no tags find
        predicted_C=np.array([4, 4]),
    )
    evaluation = span_evaluation(
        9, Metric.MICRO_F1, tally, as_arrays(true), as_arrays(found), TOKENS
    )
    recall = len(overlapping(true, found)) / (len(true) + LOST)
    precision = len(overlapping(found, true)) / len(found)
    expected = 2 * precision * recall / (precision + recall)
    assert evaluation.scores["overlap_f1"] == pytest.approx(expected)
    assert evaluation.score == tally.micro_f1
    assert [one.label for one in evaluation.classes] == ["LOC", "PER"]


def test_without_spans_the_overlap_is_zero():
    none = as_arrays([])
    zeros = Tally(hits_C=np.zeros(2), true_C=np.zeros(2), predicted_C=np.zeros(2))
    evaluation = span_evaluation(1, Metric.MICRO_F1, zeros, none, none, 5)
    assert evaluation.scores["overlap_f1"] == 0
