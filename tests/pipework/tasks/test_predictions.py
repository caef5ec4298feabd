import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.predictions import (
    MultiLabel,
    Prediction,
    RegressionValue,
    SingleLabel,
    mark_truncated,
)
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("x", "y", "z"), metric=Metric.ACCURACY)
MULTI = MultiLabelTask(labels=("x", "y", "z"), metric=Metric.MICRO_F1)
REGRESSION = RegressionTask(labels=("score",), metric=Metric.PEARSON)


def test_single_label_scores_are_a_softmax_also_for_huge_logits():
    logits_NC = np.array([[0, 0, np.log(2)], [1e4, 0, -1e4]], np.float32)
    scores_NC = TASK.probabilities(logits_NC)
    np.testing.assert_allclose(scores_NC, [[0.25, 0.25, 0.5], [1, 0, 0]], atol=1e-6)


def test_scores_are_sorted_and_limited_to_top_k():
    (prediction,) = TASK.decode(np.array([[1, 3, 2]], np.float32), top_k=2)
    assert (prediction.label, list(prediction.scores)) == ("y", ["y", "z"])
    assert prediction.score == prediction.scores["y"]


def test_the_first_of_several_labels_with_equal_scores_is_predicted():
    (prediction,) = TASK.decode(np.array([[1, 1, 1]], np.float32))
    assert list(prediction.scores) == ["x", "y", "z"]
    assert TASK.predicted_labels(np.array([[1, 1, 1]], np.float32)).tolist() == [
        [True, False, False]
    ]


def test_multi_label_scores_are_sigmoids_also_for_huge_logits():
    logits_NC = np.array([[0, np.log(3), -1e4], [1e4, -30, 0]], np.float32)
    scores_NC = MULTI.probabilities(logits_NC)
    assert scores_NC.dtype == np.float32
    np.testing.assert_allclose(scores_NC, [[0.5, 0.75, 0], [1, np.exp(-30.0), 0.5]], rtol=1e-6)


def test_labels_that_reach_their_threshold_are_predicted_best_first():
    task = MULTI.model_copy(update={"thresholds": (0.5, 0.6, 0.1)})
    logits_NC = np.array([[0, 1, -3], [-1, -1, -1]], np.float32)
    first, second = task.decode(logits_NC, top_k=1)
    assert first.labels == ("y", "x")  # a score of 0.5 reaches 0.5
    assert list(first.scores) == ["y"]
    assert second.labels == ("z",)
    assert task.predicted_labels(logits_NC).tolist() == [[True, True, False], [False, False, True]]


def test_the_default_threshold_is_a_half():
    (prediction,) = MULTI.decode(np.array([[-0.1, -0.2, -5]], np.float32))
    assert prediction.labels == ()


def test_a_regression_predicts_a_number():
    assert REGRESSION.decode(np.array([[2.5], [-1]], np.float32), 1) == [
        RegressionValue(score=2.5),
        RegressionValue(score=-1),
    ]
    assert not REGRESSION.predicted_labels(np.array([[2.5]], np.float32)).any()


PREDICTIONS = {
    '{"label":"x","score":0.5,"scores":{"x":0.5},"truncated":false}': SingleLabel(
        label="x", score=0.5, scores={"x": 0.5}
    ),
    '{"labels":["x"],"scores":{"x":0.5},"truncated":true}': MultiLabel(
        labels=("x",), scores={"x": 0.5}, truncated=True
    ),
    '{"labels":[],"scores":{},"truncated":false}': MultiLabel(labels=(), scores={}),
    '{"score":2.5,"truncated":false}': RegressionValue(score=2.5),
}


@pytest.mark.parametrize("text", PREDICTIONS)
def test_each_kind_of_prediction_reads_back_from_json(text):
    adapter = TypeAdapter(Prediction)
    assert adapter.validate_json(text) == PREDICTIONS[text]
    assert adapter.dump_json(PREDICTIONS[text]).decode() == text


def test_the_predictions_of_truncated_texts_are_marked():
    predictions = mark_truncated([*PREDICTIONS.values()], [0, 3])
    assert [prediction.truncated for prediction in predictions] == [True, True, False, True]
    assert predictions[3] == RegressionValue(score=2.5, truncated=True)


def test_an_unknown_kind_of_prediction_is_rejected():
    with pytest.raises(ValidationError):
        TypeAdapter(Prediction).validate_json('{"score": 2.5, "other": 1}')


def test_predictions_are_formatted_as_text_fields():
    multi = MultiLabel(labels=("y", "x"), scores={"y": 0.75, "x": 0.5, "z": 0.1})
    assert SingleLabel(label="x", score=0.5, scores={}).text_fields() == ("x", "0.5000")
    assert multi.text_fields() == ("y, x", "0.7500, 0.5000")
    assert RegressionValue(score=2.5).text_fields() == ("2.5000",)
