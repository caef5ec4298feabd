from dataclasses import replace

import numpy as np
import pytest

from pipework.client.tensors import InferOutputs, label_names, packed_texts, predictions, tensors
from pipework.data.entities import parse_marked_text
from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import MultiLabel, RegressionValue, SingleLabel
from pipework.tasks.registry import task_type
from pipework.tasks.regression import RegressionTask
from pipework.wire.text_tensors import OutputTensors

LABELS = ("a", "b", "a, b")
LOGITS_NC = np.array([[0.5, 2, -1], [3, 2.5, -0.5], [-4, -3, -5]], np.float32)


def task(kind, labels=LABELS):
    thresholds = (0.5, 0.9, 0.3) if kind == "multi_label" else ()
    return task_type(kind)(labels=labels, metric=Metric.ACCURACY, thresholds=thresholds)


def sent(logits_NC, kind):
    """The tensors that a server gives for logits."""
    answer = OutputTensors.of(Outputs.of(logits_NC), kind)
    return InferOutputs(
        label_N=[label.decode() for label in answer.label_N],
        score_N=answer.score_N,
        probabilities_NC=answer.probabilities_RC,
    )


def test_the_numbers_of_windows_are_marked():
    outputs = replace(sent(LOGITS_NC, task("single_label")), parameters={"windows": "1,3,2"})
    outputs.check(3)
    assert [found.windows for found in predictions(outputs, LABELS, None)] == [1, 3, 2]
    for wrong in ("1,2", "1,0,1", "1,1,1,1"):
        with pytest.raises(ValueError, match="windows: expected a number for each of 3 texts"):
            replace(outputs, parameters={"windows": wrong}).check(3)


@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
@pytest.mark.parametrize("top_k", [None, 2])
def test_predictions_from_tensors_equal_those_of_the_rest_api(kind, top_k):
    found = predictions(sent(LOGITS_NC, task(kind)), LABELS, top_k)
    assert found == task(kind).decode(Outputs.of(LOGITS_NC), top_k)
    kinds = {"single_label": SingleLabel, "multi_label": MultiLabel}
    assert {type(one) for one in found} == {kinds[kind]}


def test_texts_without_a_label_are_marked():
    abstaining = task("single_label").model_copy(update={"min_scores": (0.65,)})
    outputs = sent(LOGITS_NC, abstaining)
    found = predictions(outputs, LABELS, 2)
    assert found == abstaining.decode(Outputs.of(LOGITS_NC), 2)
    assert [one.label for one in found] == ["b", None, "b"]
    assert [one.label for one in predictions(outputs, (), None)] == ["b", None, "b"]


def test_equal_probabilities_of_different_logits_are_no_abstention():
    low = np.float32(0.01)
    logits_NC = np.array([[low, np.nextafter(low, np.float32(1)), 0]], np.float32)
    outputs = sent(logits_NC, task("single_label"))
    assert outputs.probabilities_NC[0, 0] == outputs.probabilities_NC[0, 1]
    (found,) = predictions(outputs, LABELS, None)
    assert isinstance(found, SingleLabel)
    assert found.label == "b"


@pytest.mark.parametrize("fallback", ["other", "b"])
def test_a_fallback_label_is_recognised(fallback):
    limits = {"min_scores": (0.65,), "fallback_label": fallback}
    abstaining = task("single_label").model_copy(update=limits)
    found = predictions(sent(LOGITS_NC, abstaining), LABELS, 2)
    assert found == abstaining.decode(Outputs.of(LOGITS_NC), 2)
    assert [one.label for one in found] == ["b", fallback, "b"]


@pytest.mark.parametrize(
    ("sent_rows", "expected"),
    [("", [False] * 3), ("1", [False, True, False]), ("2,0", [True, False, True])],
)
def test_truncated_texts_are_marked(sent_rows, expected):
    outputs = replace(sent(LOGITS_NC, task("single_label")), parameters={"truncated": sent_rows})
    outputs.check(3)
    for names in (LABELS, ()):
        assert [found.truncated for found in predictions(outputs, names, None)] == expected


@pytest.mark.parametrize("sent_rows", ["3", "-1", "x", "0;1", "1.0", "True"])
def test_truncated_texts_that_do_not_exist_are_reported(sent_rows):
    outputs = replace(sent(LOGITS_NC, task("single_label")), parameters={"truncated": sent_rows})
    with pytest.raises(ValueError, match=r"truncated: expected indices of 3 texts|invalid literal"):
        outputs.check(3)


def test_a_regression_is_a_number():
    task_ = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    values = np.array([[2.5], [-1]], np.float32)
    assert predictions(sent(values, task_), (), None) == [
        RegressionValue(score=2.5),
        RegressionValue(score=-1),
    ]


def test_without_class_names_a_prediction_has_only_its_label():
    found = predictions(sent(LOGITS_NC[:1], task("single_label")), (), None)
    assert [(one.label, [*one.scores]) for one in found] == [("b", ["b"])]
    assert found[0].score == found[0].scores["b"]


def test_a_different_number_of_classes_is_reported():
    with pytest.raises(PipeError, match="has 2 class names but returned 3 classes"):
        predictions(sent(LOGITS_NC, task("single_label")), ("a", "b"), None)


def test_class_names_are_read_from_classifications_in_any_order():
    assert label_names(["0.9:1:b", "0.1:2:a: b", "0:0:"]) == ("", "b", "a: b")
    assert label_names(["0.9:1", "0.1:0"]) == ()


def test_entities_are_marked_and_pairs_are_a_second_tensor():
    text, spans = "rain and goal", ((0, 4), (9, 13))
    for entities in (spans, spans[::-1]):
        (marked,) = tensors([Example(text=text, entities=entities)])["text"]
        assert parse_marked_text(marked.decode()) == (text, entities)
    pair = tensors([Example(text="a", text_pair="雨")])
    assert pair == {"text": [b"a"], "text_pair": ["雨".encode()]}


def test_each_element_is_preceded_by_its_length():
    assert packed_texts([b"ab", b""]) == b"\x02\x00\x00\x00ab\x00\x00\x00\x00"
