import numpy as np
import pytest

from pipework.data.examples import Example
from pipework.errors import DataError
from pipework.progress import Silent
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import CHUNK, evaluate, infer_all, truth


def task(*labels, kind=TaskKind.SINGLE_LABEL, metric=Metric.ACCURACY):
    return Task(kind=kind, labels=labels, metric=metric)


MULTI = task("a", "b", kind=TaskKind.MULTI_LABEL, metric=Metric.MICRO_F1)
NUMBER = task("score", kind=TaskKind.REGRESSION, metric=Metric.PEARSON)


def logits(guesses, classes):
    return np.eye(classes, dtype=np.float32)[guesses]


def test_scores_follow_the_textbook():
    # true 0: 2 of 3 hit; true 1: 1 of 2 hit; one 0 taken for 1, one 1 taken for 0
    found = evaluate(
        logits([0, 0, 1, 1, 0], 2), np.array([0, 0, 0, 1, 1], np.int32), task("a", "b")
    )
    assert found.score == found.scores[Metric.ACCURACY] == pytest.approx(3 / 5)
    assert found.confusion == ((2, 1), (1, 1))
    first, second = found.classes
    assert (first.precision, first.recall) == pytest.approx((2 / 3, 2 / 3))
    assert (second.precision, second.recall, second.support) == pytest.approx((1 / 2, 1 / 2, 2))
    assert found.scores[Metric.MACRO_F1] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.scores[Metric.MATTHEWS] == pytest.approx(1 / 6)
    assert found.metrics().scores == found.scores


def test_a_class_that_is_never_guessed_counts_as_zero():
    found = evaluate(logits([0, 0], 2), np.array([0, 1], np.int32), task("a", "b"))
    assert found.scores[Metric.MACRO_F1] == pytest.approx((2 / 3 + 0) / 2)


def test_a_class_that_does_not_occur_is_left_out():
    found = evaluate(logits([0, 1], 3), np.array([0, 1], np.int32), task("a", "b", "c"))
    assert found.scores[Metric.MACRO_F1] == 1


def test_relations_are_judged_with_their_direction():
    labels = ("Other", "R(e1,e2)", "R(e2,e1)")
    one = task(*labels, metric=Metric.DIRECTIONAL_F1)
    found = evaluate(logits([1, 2], 3), np.array([1, 1], np.int32), one)
    assert found.score == pytest.approx(1 / 2)
    assert next(iter(found.scores)) == Metric.DIRECTIONAL_F1
    assert (
        Metric.DIRECTIONAL_F1
        not in evaluate(logits([0, 1], 2), np.array([0, 1], np.int32), task("a", "b")).scores
    )


def test_several_labels_are_scored_by_label_and_by_row():
    # row 1 right, row 2 lacks b, row 3 has b too many
    logits_NC = np.array([[9, -9], [9, -9], [-9, 9]], np.float32)
    found = evaluate(logits_NC, np.array([[1, 0], [1, 1], [0, 0]], np.int8), MULTI)
    assert found.score == found.scores[Metric.MICRO_F1] == pytest.approx(2 * 2 / (3 + 3))
    assert found.scores[Metric.ACCURACY] == pytest.approx(1 / 3)
    assert found.scores[Metric.MACRO_F1] == pytest.approx((1 + 0) / 2)
    assert [(one.label, one.support) for one in found.classes] == [("a", 2), ("b", 1)]
    assert found.confusion == ()


def test_thresholds_decide_what_is_scored():
    logits_NC = np.array([[0.5, -0.5]], np.float32)
    strict = MULTI.model_copy(update={"thresholds": (0.9, 0.1)})
    assert evaluate(logits_NC, np.array([[0, 1]], np.int8), strict).score == 1
    assert evaluate(logits_NC, np.array([[0, 1]], np.int8), MULTI).score == 0


def test_numbers_are_scored_by_their_correlations():
    found = evaluate(np.array([[1], [2], [9]], np.float32), np.float32([0, 1, 2]), NUMBER)
    assert found.scores[Metric.SPEARMAN] == pytest.approx(1)
    assert 0.5 < found.score < 0.99
    assert (found.classes, found.confusion) == ((), ())


@pytest.mark.parametrize(
    ("one", "logits_NC", "truth_N"),
    [
        (task("a", "b", metric=Metric.MATTHEWS), np.eye(2)[[0, 0, 0]], np.array([0, 1, 1])),
        (MULTI, np.full((3, 2), -9.0), np.array([[0, 1], [1, 0], [0, 0]])),
        (NUMBER, np.full((3, 1), 2.5), np.array([1.0, 2, 3])),
    ],
)
def test_a_constant_answer_scores_zero(one, logits_NC, truth_N):
    assert evaluate(logits_NC.astype(np.float32), truth_N, one).score == 0


class Echo:
    def __init__(self):
        self.calls = []

    def infer(self, encodings):
        self.calls.append(len(encodings))
        return np.array([[value, 0] for value in encodings], np.float32)


def test_any_number_of_rows_is_inferred_in_order_and_in_bounded_chunks():
    engine = Echo()
    found = infer_all(engine, list(range(CHUNK + 3)), Silent())
    assert found[:, 0].tolist() == list(range(CHUNK + 3))
    assert engine.calls == [CHUNK, 3]


def test_what_is_true_has_the_types_of_the_contract():
    single = truth(
        [Example(text="x", label="b"), Example(text="y", label="0")], task("a", "b"), "f"
    )
    assert (single.tolist(), single.dtype) == ([1, 0], np.int32)
    multi = truth([Example(text="x", label=()), Example(text="y", label=("1", "a"))], MULTI, "f")
    assert (multi.tolist(), multi.dtype) == ([[0, 0], [1, 1]], np.int8)
    number = truth([Example(text="x", label="2.5")], NUMBER, "f")
    assert (number.tolist(), number.dtype) == ([2.5], np.float32)


@pytest.mark.parametrize(
    ("one", "label", "message"),
    [
        (task("a", "b"), "q", r"f\.tsv:2 has label 'q'"),
        (task("a", "b"), None, r"f\.tsv:2 has label None"),
        (MULTI, ("a", "q"), r"f\.tsv:2 has label 'q'"),
        (MULTI, "a", r"f\.tsv:2: expected a list of labels, found 'a'"),
        (NUMBER, None, r"f\.tsv:2: expected a number to learn, found None"),
    ],
)
def test_a_label_that_does_not_fit_is_named_with_its_line(one, label, message):
    right = {TaskKind.SINGLE_LABEL: "a", TaskKind.MULTI_LABEL: (), TaskKind.REGRESSION: "1"}
    rows = [Example(text="x", label=right[one.kind]), Example(text="y", label=label, line=2)]
    with pytest.raises(DataError, match=message):
        truth(rows, one, "f.tsv")


def test_no_rows_are_told():
    with pytest.raises(DataError, match=r"f\.tsv holds no rows"):
        truth([], MULTI, "f.tsv")
