"""Thresholds of labels."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MIN_GAP, MultiLabelTask, choose_thresholds
from pipework.tasks.outputs import Outputs

MULTI = MultiLabelTask(labels=("x", "y", "z"), metric=Metric.MICRO_F1)


def best_f1(scores_N, truth_N):
    """Return the best F1 of all thresholds with a gap below."""
    scores = np.unique(scores_N).astype(np.float64)
    thresholds = [*scores[np.diff(scores, prepend=0) >= MIN_GAP], 2.0]
    return max(
        f1_score(truth_N, scores_N >= threshold, zero_division=0) for threshold in thresholds
    )


@pytest.mark.parametrize("seed", range(8))
def test_chosen_thresholds_reach_the_best_possible_f1(seed):
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, 2, (60, 3)).astype(np.float32)
    if seed % 2:
        logits_NC = np.round(logits_NC)  # many rows with equal scores
    truth_NC = (random.random((60, 3)) < 0.3).astype(np.int8)
    thresholds = choose_thresholds(MULTI.probabilities(logits_NC), truth_NC)
    task = MULTI.model_copy(update={"thresholds": thresholds})
    predicted_NC = task.predicted_labels(logits_NC)
    scores_NC = task.probabilities(logits_NC)
    for label in range(3):
        f1 = f1_score(truth_NC[:, label], predicted_NC[:, label], zero_division=0)
        assert f1 == pytest.approx(best_f1(scores_NC[:, label], truth_NC[:, label]))


def test_a_threshold_is_the_midpoint_of_two_scores():
    logits_N1 = np.log(np.array([[0.8 / 0.2], [0.6 / 0.4], [0.2 / 0.8]])).astype(np.float32)
    (threshold,) = choose_thresholds(MULTI.probabilities(logits_N1), np.array([[1], [1], [0]]))
    assert threshold == pytest.approx(0.4)
    (lowest,) = choose_thresholds(MULTI.probabilities(logits_N1), np.array([[1], [1], [1]]))
    assert lowest == pytest.approx(0.1)


def test_the_scores_on_both_sides_of_a_threshold_differ():
    logits_N1 = np.array([[1], [0.00002], [0], [-2]], np.float32)
    truth_N1 = np.array([[1], [1], [0], [0]])
    (threshold,) = choose_thresholds(
        MULTI.probabilities(logits_N1), truth_N1
    )  # 0.5 would have the best F1
    assert np.abs(MULTI.probabilities(logits_N1)[:, 0] - threshold).min() > MIN_GAP / 2
    f1 = f1_score(truth_N1[:, 0], MULTI.probabilities(logits_N1)[:, 0] >= threshold)
    assert f1 == pytest.approx(0.8)  # of the first three rows


@pytest.mark.parametrize("shift", [0, 1e-7])
def test_scores_of_which_none_differ_much_have_a_threshold(shift):
    """As of a label with few rows, whose scores are all near 0."""
    logits_N1 = np.array([[-11], [-12 + shift], [-12], [-13]], np.float32)
    (threshold,) = choose_thresholds(MULTI.probabilities(logits_N1), np.array([[1], [0], [0], [0]]))
    scores_N1 = MULTI.probabilities(logits_N1)
    assert (scores_N1[:, 0] >= threshold).tolist() == [True, False, False, False]


def test_a_threshold_separates_adjacent_float32_scores():
    low = np.float32(-12)
    logits_N1 = np.array([[np.nextafter(low, np.float32(1))], [low]], np.float32)
    truth_N1 = np.array([[1], [0]])
    scores = MULTI.probabilities(logits_N1)
    thresholds = choose_thresholds(MULTI.probabilities(logits_N1), truth_N1)
    task = MultiLabelTask(labels=("x",), metric=Metric.MICRO_F1, thresholds=thresholds)
    expected = [[True], [scores[1] == scores[0]]]
    assert task.predicted_labels(logits_N1).tolist() == expected


def test_a_label_without_rows_gets_the_default_threshold():
    logits_NC = np.array([[1, 2], [0, 1], [-1, 0]], np.float32)
    truth_NC = np.array([[0, 1], [0, 0], [0, 1]])
    thresholds = choose_thresholds(MULTI.probabilities(logits_NC), truth_NC)
    assert thresholds[0] == 0.5
    assert choose_thresholds(MULTI.probabilities(logits_NC[::-1]), truth_NC[::-1]) == thresholds


def test_multi_label_scores_are_sigmoids_also_for_huge_logits():
    logits_NC = np.array([[0, np.log(3), -1e4], [1e4, -30, 0]], np.float32)
    scores_NC = MULTI.probabilities(logits_NC)
    assert scores_NC.dtype == np.float32
    np.testing.assert_allclose(scores_NC, [[0.5, 0.75, 0], [1, np.exp(-30.0), 0.5]], rtol=1e-6)


def test_labels_that_reach_their_threshold_are_predicted_best_first():
    task = MULTI.model_copy(update={"thresholds": (0.5, 0.6, 0.1)})
    logits_NC = np.array([[0, 1, -3], [-1, -1, -1]], np.float32)
    first, second = task.decode(Outputs.of(logits_NC), top_k=1)
    assert first.labels == ("y", "x")  # a score of 0.5 reaches 0.5
    assert list(first.scores) == ["y"]
    assert second.labels == ("z",)
    assert task.predicted_labels(logits_NC).tolist() == [[True, True, False], [False, False, True]]


def test_the_default_threshold_is_a_half():
    (prediction,) = MULTI.decode(Outputs.of(np.array([[-0.1, -0.2, -5]], np.float32)))
    assert prediction.labels == ()
