import numpy as np
import pytest

from pipework.data.entities import read_marks
from pipework.data.examples import Example
from pipework.errors import PipeError
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.predictions import OneLabel, SeveralLabels, Value, decide
from pipework.serve.client.tensors import Found, names_of, predictions, tensors
from pipework.serve.text_tensors import Answer

LABELS = ("a", "b", "a, b")
LOGITS_NC = np.array([[0.5, 2, -1], [3, 2.5, -0.5], [-4, -3, -5]], np.float32)


def task(kind, labels=LABELS):
    thresholds = (0.5, 0.9, 0.3) if kind is TaskKind.MULTI_LABEL else ()
    return Task(kind=kind, labels=labels, metric=Metric.ACCURACY, thresholds=thresholds)


def sent(logits_NC, kind):
    """The tensors that a server gives for logits."""
    answer = Answer.of(logits_NC, kind)
    return Found(
        label_N=[label.decode() for label in answer.label_N],
        score_N=answer.score_N,
        probabilities_NC=answer.probabilities_NC,
    )


@pytest.mark.parametrize("kind", [TaskKind.SINGLE_LABEL, TaskKind.MULTI_LABEL])
@pytest.mark.parametrize("top_k", [None, 2])
def test_tensors_say_what_our_own_door_says(kind, top_k):
    found = predictions(sent(LOGITS_NC, task(kind)), LABELS, top_k)
    assert found == decide(LOGITS_NC, task(kind), top_k)
    kinds = {TaskKind.SINGLE_LABEL: OneLabel, TaskKind.MULTI_LABEL: SeveralLabels}
    assert {type(one) for one in found} == {kinds[kind]}


def test_a_regression_is_a_number():
    task_ = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
    values = np.array([[2.5], [-1]], np.float32)
    assert predictions(sent(values, task_), (), None) == [Value(score=2.5), Value(score=-1)]


def test_where_classes_have_no_names_only_the_label_is_known():
    found = predictions(sent(LOGITS_NC[:1], task(TaskKind.SINGLE_LABEL)), (), None)
    assert [(one.label, [*one.scores]) for one in found] == [("b", ["b"])]
    assert found[0].score == found[0].scores["b"]


def test_names_of_another_version_are_told():
    with pytest.raises(PipeError, match="names 2 classes and answers with 3"):
        predictions(sent(LOGITS_NC, task(TaskKind.SINGLE_LABEL)), ("a", "b"), None)


def test_names_come_from_classifications_in_any_order():
    assert names_of(["0.9:1:b", "0.1:2:a: b", "0:0:"]) == ("", "b", "a: b")
    assert names_of(["0.9:1", "0.1:0"]) == ()


def test_entities_are_marked_and_pairs_are_a_second_tensor():
    text, spans = "rain and goal", ((0, 4), (9, 13))
    for entities in (spans, spans[::-1]):
        (marked,) = tensors([Example(text=text, entities=entities)])["text"]
        assert read_marks(marked.decode()) == (text, entities)
    pair = tensors([Example(text="a", text_pair="雨")])
    assert pair == {"text": [b"a"], "text_pair": ["雨".encode()]}
