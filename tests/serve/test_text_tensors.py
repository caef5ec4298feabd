import numpy as np
import pytest

from pipework.errors import InputError, TooLargeError
from pipework.run_folder.manifest import read_manifest
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.serve.text_tensors import MAX_CHARACTERS, Answer, Texts

ONE = Task(kind=TaskKind.SINGLE_LABEL, labels=("no", "yes"), metric=Metric.ACCURACY)
SEVERAL = Task(
    kind=TaskKind.MULTI_LABEL,
    labels=("a", "b", "c"),
    metric=Metric.MICRO_F1,
    thresholds=(0.5, 0.5, 0.9),
)
VALUE = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)


def answered(logits, task):
    tensors = Answer.of(np.array(logits, np.float32), task).tensors()
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def test_a_label_comes_with_its_probability_and_that_of_each_other():
    found = answered([[0, 0.5], [3, 0]], ONE)
    assert found["label"] == [[b"yes"], [b"no"]]
    assert found["score"] == [
        [pytest.approx(0.62246, abs=1e-5)],
        [pytest.approx(0.95257, abs=1e-5)],
    ]
    assert found["probabilities"][0] == pytest.approx([0.37754, 0.62246], abs=1e-5)
    assert found["logits"] == [[0, 0.5], [3, 0]]


def test_several_labels_are_joined_as_predict_prints_them_best_first_and_none_is_empty():
    found = answered([[1, 2, 2], [-1, -2, 3], [-1, -2, -3]], SEVERAL)
    assert found["label"] == [[b"b, a"], [b"c"], [b""]]
    assert found["score"][2] == [pytest.approx(1 / (1 + np.e))]


def test_a_regression_has_a_score_and_no_label():
    found = answered([[2.5], [-1]], VALUE)
    assert found["label"] == [[b""], [b""]]
    assert found["score"] == found["probabilities"] == found["logits"] == [[2.5], [-1]]


def test_no_texts_are_answered_with_tensors_of_no_rows():
    tensors = Answer.of(np.empty((0, 2), np.float32), ONE).tensors()
    assert [tensor.shape for tensor in tensors.values()] == [(0, 1), (0, 1), (0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (Texts(text=[b"good", b"\xff"]), "input 1: text is not UTF-8: invalid start byte"),
        (Texts(text=["\ud800".encode(errors="surrogatepass")]), "input 0: text is not UTF-8"),
        (Texts(text=[b"a"], text_pair=[b"b"]), "input 0: found a text_pair"),
        (Texts(text=[b"a"], text_pair=[b"\xff"]), "input 0: text_pair is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_text_is_told_with_its_number(run, texts, message):
    with pytest.raises(InputError, match=message):
        texts.examples(read_manifest(run).input)


def test_a_text_may_be_long_but_not_endless(run):
    given = read_manifest(run).input
    assert len(Texts(text=[b"a" * MAX_CHARACTERS]).examples(given)) == 1
    with pytest.raises(TooLargeError, match="at most 100000 characters, found 100001"):
        Texts(text=[b"a" * (MAX_CHARACTERS + 1)]).examples(given)
