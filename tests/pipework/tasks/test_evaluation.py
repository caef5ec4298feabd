import numpy as np
import pytest

from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.registry import task_type


def task(*labels, kind="single_label", metric=Metric.ACCURACY):
    return task_type(kind)(labels=labels, metric=metric)


MULTI = task("a", "b", kind="multi_label", metric=Metric.MICRO_F1)
NUMBER = task("score", kind="regression", metric=Metric.PEARSON)


def logits(predictions, classes):
    return np.eye(classes, dtype=np.float32)[predictions]


def test_scores_match_their_definitions():
    # Label 0: 2 of 3 rows correct. Label 1: 1 of 2 rows correct.
    evaluation = task("a", "b").evaluate(
        Outputs.of(logits([0, 0, 1, 1, 0], 2)), np.array([0, 0, 0, 1, 1], np.int32)
    )
    assert evaluation.score == evaluation.scores[Metric.ACCURACY] == pytest.approx(3 / 5)
    assert evaluation.confusion == ((0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 1, 1))
    first, second = evaluation.classes
    assert (first.precision, first.recall) == pytest.approx((2 / 3, 2 / 3))
    assert (second.precision, second.recall, second.support) == pytest.approx((1 / 2, 1 / 2, 2))
    assert evaluation.scores[Metric.MACRO_F1] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert evaluation.scores[Metric.MATTHEWS] == pytest.approx(1 / 6)
    assert evaluation.metrics().scores == evaluation.scores


def test_a_class_that_is_never_predicted_has_f1_zero():
    evaluation = task("a", "b").evaluate(Outputs.of(logits([0, 0], 2)), np.array([0, 1], np.int32))
    assert evaluation.scores[Metric.MACRO_F1] == pytest.approx((2 / 3 + 0) / 2)


def test_a_class_that_does_not_occur_is_left_out():
    evaluation = task("a", "b", "c").evaluate(
        Outputs.of(logits([0, 1], 3)), np.array([0, 1], np.int32)
    )
    assert evaluation.scores[Metric.MACRO_F1] == 1


def test_relations_are_scored_with_their_direction():
    labels = ("Other", "R(e1,e2)", "R(e2,e1)")
    relations = task(*labels, metric=Metric.DIRECTIONAL_F1)
    evaluation = relations.evaluate(Outputs.of(logits([1, 2], 3)), np.array([1, 1], np.int32))
    assert evaluation.score == pytest.approx(1 / 2)
    assert next(iter(evaluation.scores)) == Metric.DIRECTIONAL_F1
    assert (
        Metric.DIRECTIONAL_F1
        not in task("a", "b")
        .evaluate(Outputs.of(logits([0, 1], 2)), np.array([0, 1], np.int32))
        .scores
    )


def test_a_multi_label_task_is_scored_by_label_and_by_row():
    # Row 1 is correct, row 2 lacks label b, row 3 has an extra label b.
    logits_NC = np.array([[9, -9], [9, -9], [-9, 9]], np.float32)
    evaluation = MULTI.evaluate(Outputs.of(logits_NC), np.array([[1, 0], [1, 1], [0, 0]], np.int8))
    assert evaluation.score == evaluation.scores[Metric.MICRO_F1] == pytest.approx(2 * 2 / (3 + 3))
    assert evaluation.scores[Metric.ACCURACY] == pytest.approx(1 / 3)
    assert evaluation.scores[Metric.MACRO_F1] == pytest.approx((1 + 0) / 2)
    support = [(report.label, report.support) for report in evaluation.classes]
    assert support == [("a", 2), ("b", 1)]
    assert evaluation.confusion == ()


def test_thresholds_determine_the_predicted_labels():
    logits_NC = np.array([[0.5, -0.5]], np.float32)
    strict = MULTI.model_copy(update={"thresholds": (0.9, 0.1)})
    assert strict.evaluate(Outputs.of(logits_NC), np.array([[0, 1]], np.int8)).score == 1
    assert MULTI.evaluate(Outputs.of(logits_NC), np.array([[0, 1]], np.int8)).score == 0


def test_a_regression_is_scored_by_correlations():
    evaluation = NUMBER.evaluate(
        Outputs.of(np.array([[1], [2], [9]], np.float32)), np.float32([0, 1, 2])
    )
    assert evaluation.scores[Metric.SPEARMAN] == pytest.approx(1)
    assert 0.5 < evaluation.score < 0.99
    assert (evaluation.classes, evaluation.confusion) == ((), ())


@pytest.mark.parametrize(
    ("scored", "logits_NC", "truth_N"),
    [
        (task("a", "b", metric=Metric.MATTHEWS), np.eye(2)[[0, 0, 0]], np.array([0, 1, 1])),
        (MULTI, np.full((3, 2), -9.0), np.array([[0, 1], [1, 0], [0, 0]])),
        (NUMBER, np.full((3, 1), 2.5), np.array([1.0, 2, 3])),
    ],
)
def test_a_constant_prediction_scores_zero(scored, logits_NC, truth_N):
    assert scored.evaluate(Outputs.of(logits_NC.astype(np.float32)), truth_N).score == 0
