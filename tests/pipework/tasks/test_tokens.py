"""Token classification: the truth of tokens, exact F1 of spans, and decoded spans."""

import random

import numpy as np
import pytest
from pydantic import ValidationError

from pipework.errors import DataError
from pipework.tasks.kinds import Metric
from pipework.tasks.labels import NO_LABEL
from pipework.tasks.outputs import LocatedOutputs, Outputs, offsets_of
from pipework.tasks.spans import Span, bio_tags
from pipework.tasks.tokens import UNLABELLED, TokenTask

TASK = TokenTask(labels=bio_tags(("LOC", "PER")), metric=Metric.MICRO_F1)
B_LOC, I_LOC, B_PER, I_PER = (TASK.labels.index(tag) for tag in TASK.labels[1:])
# "Ana met Bob", a token for each word, and special tokens around them.
PLACES = np.array([[-1, -1], [0, 3], [4, 7], [8, 11], [-1, -1]], np.int32)
WIDTH = 6


def truth(*spans):
    (row,) = TASK.token_truth([("f:1", spans)], [PLACES], WIDTH)
    return row[:WIDTH].tolist(), row[WIDTH:].tolist()


def test_a_tag_for_each_token_and_none_for_special_tokens():
    expected = [NO_LABEL, B_PER, I_PER, 0, NO_LABEL, NO_LABEL]
    assert truth(Span(0, 7, "PER")) == (expected, [0, 0])


def test_the_first_tokens_of_words_have_the_tags():
    # "Zürich Anna x", in the tokens Zü rich An na x
    places = np.array([[0, 6], [-1, -1], [7, 11], [-1, -1], [12, 13]], np.int32)
    (row,) = TASK.token_truth([("f:1", (Span(0, 11, "PER"),))], [places], WIDTH)
    assert row.tolist() == [B_PER, NO_LABEL, I_PER, NO_LABEL, 0, NO_LABEL, 0, 0]


@pytest.mark.parametrize(
    ("spans", "tags", "lost"),
    [
        ([Span(1, 7, "PER")], [UNLABELLED, UNLABELLED, 0], [0, 1]),  # begins inside of a token
        ([Span(20, 25, "LOC")], [0, 0, 0], [1, 0]),  # in the truncated part
        ([Span(0, 3, "LOC"), Span(0, 11, "PER")], [B_PER, I_PER, I_PER], [1, 0]),
    ],
)
def test_a_span_that_no_tags_find_is_counted(spans, tags, lost):
    assert truth(*spans) == ([NO_LABEL, *tags, NO_LABEL, NO_LABEL], lost)


def test_a_span_that_a_truncated_text_cuts_is_lost():
    spans = (Span(8, 20, "PER"),)  # "Bobby Tables", of which "Bob" is read
    (row,) = TASK.token_truth([("f:1", spans)], [PLACES], len(PLACES))
    assert row.tolist() == [NO_LABEL, 0, 0, UNLABELLED, NO_LABEL, 0, 1]


def test_an_unknown_type_is_an_error_with_its_place():
    with pytest.raises(DataError, match="f:1 has a span 'ORG', which the model lacks"):
        truth(Span(0, 3, "ORG"))


def test_a_tag_outside_of_spans_is_needed():
    with pytest.raises(ValidationError, match="expected a tag 'O' outside of spans"):
        TokenTask(labels=("B-A", "I-A"), metric=Metric.MICRO_F1)


def logits(*tags):
    return 5 * np.eye(len(TASK.labels), dtype=np.float32)[[*tags]]


def located(rows, places, texts):
    counts = np.array([len(row) for row in rows])
    return LocatedOutputs(np.concatenate(rows), offsets_of(counts), np.concatenate(places), texts)


def test_spans_have_the_characters_of_their_tokens():
    rows = [logits(B_PER, B_PER, 0, I_PER, B_LOC), logits(0, 0, 0, 0, 0)]
    rows[0][3, B_PER] = 4
    outputs = located(rows, [PLACES, PLACES], ["Ana met Bob"] * 2)
    first, second = TASK.decode(outputs)
    # A special token is in no span. I-PER is not valid after O, and B-PER is next.
    assert [(span.start, span.end, span.label, span.text) for span in first.spans] == [
        (0, 3, "PER", "Ana"),
        (8, 11, "PER", "Bob"),
    ]
    probability = 1 / (1 + 4 * np.exp(-5))
    assert first.spans[0].score == pytest.approx(probability, abs=1e-6)
    assert second.spans == ()
    columns = {name: column.values for name, column in TASK.columns(outputs).items()}
    assert [[span["text"] for span in row] for row in columns["predicted_spans"]] == [
        [span.text for span in one.spans] for one in (first, second)
    ]


def test_a_span_below_the_lowest_score_of_its_type_is_not_found():
    outputs = located([logits(0, B_PER, 0, B_LOC, 0)], [PLACES], ["Ana met Bob"])
    outputs.values[1] /= 2  # the first token of Ana is less certain than Bob
    truth = TASK.token_truth([("f", (Span(0, 3, "PER"),))], [PLACES], 5)
    first, second = TASK.decode(outputs)[0].spans
    assert (first.label, second.label) == ("PER", "LOC")
    assert first.score < second.score
    for kept in ("PER", "LOC"):
        task = TASK.decided([float(name != kept) for name in TASK.scheme.types])
        assert [span.label for span in task.decode(outputs)[0].spans] == [kept]
        assert task.evaluate(outputs, truth).score == (kept == "PER")
        assert task.describe_output().count(f"1 for {kept}") == 0
        assert "no span below 1 for" in task.describe_output()
    task = TASK.model_copy(update={"min_scores": (second.score,)})
    assert [span.label for span in task.decode(outputs)[0].spans] == ["LOC"]
    assert task.abstained(outputs) == 0
    columns = dict(zip(TASK.scheme.types, TASK.threshold_columns(outputs, truth), strict=True))
    assert columns["PER"][1].tolist() == [True]
    assert columns["LOC"][0].tolist() == pytest.approx([second.score])
    assert columns["LOC"][1].tolist() == [False]


def test_a_text_without_finite_logits_does_not_change_the_others():
    row = logits(0, B_PER, 0, B_LOC, 0)
    broken = np.full_like(row, np.nan)
    outputs = located([row, broken, row], [PLACES] * 3, ["Ana met Bob"] * 3)
    for task in (TASK, TASK.model_copy(update={"min_scores": (0.5,)})):
        first, _, third = task.decode(outputs)
        assert len(first.spans) == 2
        assert [span.score for span in first.spans] == pytest.approx(
            [span.score for span in third.spans]
        )


def test_the_lowest_scores_are_those_of_spans():
    before = located([logits(0, B_PER, I_PER, 0, 0)], [PLACES], ["Ana met Bob"])
    after = located([0.9 * before.values], [PLACES], ["Ana met Bob"])
    score = TASK.decode(before)[0].spans[0].score
    assert TASK.changed_inputs(before, after, 5).tolist() == []
    task = TASK.model_copy(update={"min_scores": (score - 1e-6,)})
    assert task.decode(after)[0].spans == ()
    assert task.changed_inputs(before, after, 5).tolist() == [0]
    # The limit is not one of tokens outside of spans.
    task = TASK.model_copy(update={"min_scores": (1.0,)})
    assert task.changed_inputs(before, after, 5).tolist() == []
    assert (task.predicted_labels(before.values) == TASK.predicted_labels(before.values)).all()


def test_the_number_of_lost_spans_does_not_overflow():
    spans = tuple(Span(12 + number, 13 + number, "PER") for number in range(40_000))
    truth = TASK.token_truth([("f", spans)], [PLACES], len(PLACES))
    assert truth[0, -2:].max() == 32_767


def test_only_texts_with_a_tag_may_have_spans():
    outputs = Outputs(np.concatenate([logits(0, B_PER), logits(0)]), np.array([0, 2, 3]))
    assert TASK.has_spans(outputs).tolist() == [True, False]


def naive_counts(tags):
    """Return the spans of valid BIO tags of one text."""
    spans, start = [], None
    for position, tag in enumerate([*tags, 0]):
        if start is not None and tag not in {I_LOC, I_PER}:
            spans.append((start, position, tags[start]))
            start = None
        if tag in {B_LOC, B_PER}:
            start = position
    return {*spans}


def test_the_score_is_the_f1_of_spans_with_exact_ends_and_type():
    generator, names = random.Random(0), [0, B_LOC, B_PER]

    def tags(length):
        found = [generator.choice(names)]
        while len(found) < length:
            before = found[-1]
            inner = {B_LOC: I_LOC, I_LOC: I_LOC, B_PER: I_PER, I_PER: I_PER}.get(before)
            found.append(generator.choice([*names, inner] if inner else names))
        return found

    true = [tags(generator.randint(1, 8)) for _ in range(50)]
    predicted = [row if generator.random() < 0.5 else tags(len(row)) for row in true]
    lost = [[generator.randint(0, 1), 0] for _ in true]
    width = max(map(len, true)) + 1
    truth = np.array(
        [
            row + [NO_LABEL] * (width - len(row)) + extra
            for row, extra in zip(true, lost, strict=True)
        ],
        np.int16,
    )
    outputs = Outputs(
        np.concatenate([logits(*row) for row in predicted]),
        offsets_of(np.array([len(row) for row in predicted])),
    )
    pairs = [(naive_counts(a), naive_counts(b)) for a, b in zip(true, predicted, strict=True)]
    right = sum(len(a & b) for a, b in pairs)
    total = sum(len(a) + len(b) for a, b in pairs) + np.sum(lost)
    evaluation = TASK.evaluate(outputs, truth)
    assert evaluation.score == pytest.approx(2 * right / total)
    assert sum(one.support for one in evaluation.classes) == total - sum(len(b) for _, b in pairs)
    assert TASK.scorer(outputs, truth)(np.arange(50)) == evaluation.score
    some = np.array([3, 3, 7])
    expected = TASK.evaluate(outputs.take(some), truth[some]).score
    assert TASK.scorer(outputs, truth)(some) == pytest.approx(expected)
    assert TASK.label_counts(truth).sum() == sum(map(len, true))


def test_the_constant_predicts_no_span():
    _, logits_C = TASK.constant(np.empty(0))
    assert logits_C.argmax() == TASK.labels.index("O")
