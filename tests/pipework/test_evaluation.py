import numpy as np
import pytest

from pipework.errors import DataError
from pipework.evaluation import CHUNK, evaluate, infer_all, truth
from pipework.examples import Example
from pipework.progress import Silent


def logits(guesses, classes):
    return np.eye(classes, dtype=np.float32)[guesses]


def test_scores_follow_the_textbook():
    # true 0: 2 of 3 hit; true 1: 1 of 2 hit; one 0 taken for 1, one 1 taken for 0
    found = evaluate(logits([0, 0, 1, 1, 0], 2), np.array([0, 0, 0, 1, 1], np.int32), ["a", "b"])
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.confusion == ((2, 1), (1, 1))
    first, second = found.classes
    assert (first.precision, first.recall) == pytest.approx((2 / 3, 2 / 3))
    assert (second.precision, second.recall, second.support) == pytest.approx((1 / 2, 1 / 2, 2))
    assert found.macro_f1 == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_a_class_that_is_never_guessed_counts_as_zero():
    found = evaluate(logits([0, 0], 2), np.array([0, 1], np.int32), ["a", "b"])
    assert found.macro_f1 == pytest.approx((2 / 3 + 0) / 2)


def test_a_class_that_does_not_occur_is_left_out():
    found = evaluate(logits([0, 1], 3), np.array([0, 1], np.int32), ["a", "b", "c"])
    assert found.macro_f1 == 1


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


def test_an_unknown_label_is_named_with_its_row():
    rows = [Example(text="x", label="a"), Example(text="y", label="q")]
    with pytest.raises(DataError, match=r"f\.tsv: row 2 has label 'q'"):
        truth(rows, ["a", "b"], "f.tsv")
