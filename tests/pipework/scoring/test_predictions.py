import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from sklearn.metrics import f1_score

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.predictions import (
    OneLabel,
    Prediction,
    SeveralLabels,
    Value,
    choose_thresholds,
    decide,
    given_labels,
    probabilities,
)

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("x", "y", "z"), metric=Metric.ACCURACY)
MULTI = Task(kind=TaskKind.MULTI_LABEL, labels=("x", "y", "z"), metric=Metric.MICRO_F1)
REGRESSION = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)


def test_scores_are_a_softmax_also_for_huge_logits():
    logits_NC = np.array([[0, 0, np.log(2)], [1e4, 0, -1e4]], np.float32)
    scores_NC = probabilities(logits_NC, TASK)
    np.testing.assert_allclose(scores_NC, [[0.25, 0.25, 0.5], [1, 0, 0]], atol=1e-6)


def test_labels_are_ranked_and_cut_to_top_k():
    (found,) = decide(np.array([[1, 3, 2]], np.float32), TASK, top_k=2)
    assert (found.label, list(found.scores)) == ("y", ["y", "z"])
    assert found.score == found.scores["y"]


def test_a_tie_goes_to_the_first_label_each_time():
    (found,) = decide(np.array([[1, 1, 1]], np.float32), TASK)
    assert list(found.scores) == ["x", "y", "z"]
    assert given_labels(np.array([[1, 1, 1]], np.float32), TASK).tolist() == [[True, False, False]]


def test_several_labels_are_scored_apart_also_for_huge_logits():
    logits_NC = np.array([[0, np.log(3), -1e4], [1e4, -30, 0]], np.float32)
    scores_NC = probabilities(logits_NC, MULTI)
    assert scores_NC.dtype == np.float32
    np.testing.assert_allclose(scores_NC, [[0.5, 0.75, 0], [1, np.exp(-30.0), 0.5]], rtol=1e-6)


def test_all_labels_that_reach_their_threshold_are_given_best_first():
    task = MULTI.model_copy(update={"thresholds": (0.5, 0.6, 0.1)})
    logits_NC = np.array([[0, 1, -3], [-1, -1, -1]], np.float32)
    first, second = decide(logits_NC, task, top_k=1)
    assert first.labels == ("y", "x")  # a score of 0.5 reaches 0.5
    assert list(first.scores) == ["y"]
    assert second.labels == ("z",)
    assert given_labels(logits_NC, task).tolist() == [[True, True, False], [False, False, True]]


def test_without_thresholds_a_half_is_reached_or_not():
    (found,) = decide(np.array([[-0.1, -0.2, -5]], np.float32), MULTI)
    assert found.labels == ()


def test_a_regression_gives_its_number():
    assert decide(np.array([[2.5], [-1]], np.float32), REGRESSION, 1) == [
        Value(score=2.5),
        Value(score=-1),
    ]
    assert not given_labels(np.array([[2.5]], np.float32), REGRESSION).any()


ANSWERS = {
    '{"label":"x","score":0.5,"scores":{"x":0.5}}': OneLabel(
        label="x", score=0.5, scores={"x": 0.5}
    ),
    '{"labels":["x"],"scores":{"x":0.5}}': SeveralLabels(labels=("x",), scores={"x": 0.5}),
    '{"labels":[],"scores":{}}': SeveralLabels(labels=(), scores={}),
    '{"score":2.5}': Value(score=2.5),
}


@pytest.mark.parametrize("text", ANSWERS)
def test_each_kind_of_answer_reads_back_from_its_json(text):
    adapter = TypeAdapter(Prediction)
    assert adapter.validate_json(text) == ANSWERS[text]
    assert adapter.dump_json(ANSWERS[text]).decode() == text


def test_an_answer_of_no_kind_is_refused():
    with pytest.raises(ValidationError):
        TypeAdapter(Prediction).validate_json('{"score": 2.5, "other": 1}')


def test_answers_in_words():
    several = SeveralLabels(labels=("y", "x"), scores={"y": 0.75, "x": 0.5, "z": 0.1})
    assert OneLabel(label="x", score=0.5, scores={}).words() == ("x", "0.5000")
    assert several.words() == ("y, x", "0.7500, 0.5000")
    assert Value(score=2.5).words() == ("2.5000",)


def best_f1(scores_N, truth_N):
    """The best F1 of any threshold, by trying all."""
    tries = [*np.unique(scores_N), 2.0]
    return max(f1_score(truth_N, scores_N >= one, zero_division=0) for one in tries)


@pytest.mark.parametrize("seed", range(8))
def test_thresholds_reach_the_best_f1_that_any_could(seed):
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, 2, (60, 3)).astype(np.float32)
    if seed % 2:
        logits_NC = np.round(logits_NC)  # many rows with one score
    truth_NC = (random.random((60, 3)) < 0.3).astype(np.int8)
    thresholds = choose_thresholds(logits_NC, truth_NC)
    task = MULTI.model_copy(update={"thresholds": thresholds})
    given_NC = given_labels(logits_NC, task)
    scores_NC = probabilities(logits_NC, task)
    for label in range(3):
        found = f1_score(truth_NC[:, label], given_NC[:, label], zero_division=0)
        assert found == pytest.approx(best_f1(scores_NC[:, label], truth_NC[:, label]))


def test_a_threshold_lies_in_the_middle_between_two_scores():
    logits_N1 = np.log(np.array([[0.8 / 0.2], [0.6 / 0.4], [0.2 / 0.8]])).astype(np.float32)
    (found,) = choose_thresholds(logits_N1, np.array([[1], [1], [0]]))
    assert found == pytest.approx(0.4)
    (lowest,) = choose_thresholds(logits_N1, np.array([[1], [1], [1]]))
    assert lowest == pytest.approx(0.1)


def test_neighbours_in_float32_are_told_apart_by_their_threshold():
    low = np.float32(0.3)
    logits_N1 = np.array([[np.nextafter(low, np.float32(1))], [low]], np.float32)
    truth_N1 = np.array([[1], [0]])
    scores = probabilities(logits_N1, MULTI)
    thresholds = choose_thresholds(logits_N1, truth_N1)
    task = Task(
        kind=TaskKind.MULTI_LABEL, labels=("x",), metric=Metric.MICRO_F1, thresholds=thresholds
    )
    expected = [[True], [scores[1] == scores[0]]]
    assert given_labels(logits_N1, task).tolist() == expected


def test_a_label_that_no_row_has_gets_a_half_and_order_does_not_matter():
    logits_NC = np.array([[1, 2], [0, 1], [-1, 0]], np.float32)
    truth_NC = np.array([[0, 1], [0, 0], [0, 1]])
    found = choose_thresholds(logits_NC, truth_NC)
    assert found[0] == 0.5
    assert choose_thresholds(logits_NC[::-1], truth_NC[::-1]) == found
