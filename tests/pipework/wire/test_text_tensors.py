import numpy as np
import pytest

from pipework.errors import InputError, TooLargeError
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.wire.text_tensors import MAX_CHARACTERS, InputTexts, OutputTensors

SINGLE = SingleLabelTask(labels=("no", "yes"), metric=Metric.ACCURACY)
MULTI = MultiLabelTask(labels=("a", "b", "c"), metric=Metric.MICRO_F1, thresholds=(0.5, 0.5, 0.9))
VALUE = RegressionTask(labels=("score",), metric=Metric.PEARSON)


def outputs(logits, task):
    tensors = OutputTensors.of(Outputs.of(np.array(logits, np.float32)), task).tensors()
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def test_outputs_have_the_label_its_score_and_all_probabilities():
    tensors = outputs([[0, 0.5], [3, 0]], SINGLE)
    assert tensors["label"] == [[b"yes"], [b"no"]]
    assert tensors["score"] == [
        [pytest.approx(0.62246, abs=1e-5)],
        [pytest.approx(0.95257, abs=1e-5)],
    ]
    assert tensors["probabilities"][0] == pytest.approx([0.37754, 0.62246], abs=1e-5)
    assert tensors["logits"] == [[0, 0.5], [3, 0]]


def test_several_labels_are_joined_best_first_and_no_label_is_empty():
    tensors = outputs([[1, 2, 2], [-1, -2, 3], [-1, -2, -3]], MULTI)
    assert tensors["label"] == [[b"b, a"], [b"c"], [b""]]
    assert tensors["score"][2] == [pytest.approx(1 / (1 + np.e))]


def test_a_regression_has_a_score_and_no_label():
    tensors = outputs([[2.5], [-1]], VALUE)
    assert tensors["label"] == [[b""], [b""]]
    assert tensors["score"] == tensors["probabilities"] == tensors["logits"] == [[2.5], [-1]]


def test_zero_texts_give_tensors_with_zero_rows():
    tensors = OutputTensors.of(Outputs.of(np.empty((0, 2), np.float32)), SINGLE).tensors()
    assert [tensor.shape for tensor in tensors.values()] == [(0, 1), (0, 1), (0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (InputTexts(text=[b"good", b"\xff"]), "input 1: text is not UTF-8: invalid start byte"),
        (InputTexts(text=["\ud800".encode(errors="surrogatepass")]), "input 0: text is not UTF-8"),
        (InputTexts(text=[b"a"], text_pair=[b"b"]), "input 0: found a text_pair"),
        (InputTexts(text=[b"a"], text_pair=[b"\xff"]), "input 0: text_pair is not UTF-8"),
    ],
)
def test_an_error_of_a_text_has_its_index(run, texts, message):
    with pytest.raises(InputError, match=message):
        texts.examples(read_manifest(run).input)


def test_a_text_has_a_maximum_length(run):
    model_input = read_manifest(run).input
    assert len(InputTexts(text=[b"a" * MAX_CHARACTERS]).examples(model_input)) == 1
    with pytest.raises(TooLargeError, match="at most 100000 characters, found 100001"):
        InputTexts(text=[b"a" * (MAX_CHARACTERS + 1)]).examples(model_input)
