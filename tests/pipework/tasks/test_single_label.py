"""Decoding of a single label."""

import numpy as np

from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("x", "y", "z"), metric=Metric.ACCURACY)


def test_single_label_scores_are_a_softmax_also_for_huge_logits():
    logits_NC = np.array([[0, 0, np.log(2)], [1e4, 0, -1e4]], np.float32)
    scores_NC = TASK.probabilities(logits_NC)
    np.testing.assert_allclose(scores_NC, [[0.25, 0.25, 0.5], [1, 0, 0]], atol=1e-6)


def test_log_probabilities_are_those_of_the_scores():
    logits_NC = np.random.default_rng(0).normal(0, 3, (500, 3)).astype(np.float32)
    np.testing.assert_allclose(
        np.exp(TASK.log_probabilities(logits_NC))[:, 0], TASK.probabilities(logits_NC), rtol=1e-5
    )


def test_the_label_is_that_of_the_logits_if_scores_are_equal():
    logits_NC = np.array([[1e-9, 2e-9, 0]], np.float32)
    assert len({*TASK.probabilities(logits_NC)[0, :2].tolist()}) == 1
    assert TASK.decode(Outputs.of(logits_NC))[0].label == "y"
    assert TASK.columns(Outputs.of(logits_NC))["predicted_label"].values == ["y"]


def test_scores_are_sorted_and_limited_to_top_k():
    (prediction,) = TASK.decode(Outputs.of(np.array([[1, 3, 2]], np.float32)), top_k=2)
    assert (prediction.label, list(prediction.scores)) == ("y", ["y", "z"])
    assert prediction.score == prediction.scores["y"]


def test_the_first_of_several_labels_with_equal_scores_is_predicted():
    (prediction,) = TASK.decode(Outputs.of(np.array([[1, 1, 1]], np.float32)))
    assert list(prediction.scores) == ["x", "y", "z"]
    assert TASK.predicted_labels(np.array([[1, 1, 1]], np.float32)).tolist() == [
        [True, False, False]
    ]
