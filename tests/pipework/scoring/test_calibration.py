"""Calibration: scikit-learn's scores and bins, and probabilities whose error is known."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from pipework.scoring.calibration import calibration, calibration_change
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import sigmoid, softmax
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask

LABELS = ("sport", "weather", "economy")


def single(labels=LABELS):
    return SingleLabelTask(labels=labels, metric=Metric.ACCURACY)


def drawn(rows, seed=0, labels=LABELS):
    """Logits, and labels drawn from their softmax: perfect probabilities."""
    random = np.random.default_rng(seed)
    logits_NC = random.normal(0, 2, (rows, len(labels))).astype(np.float32)
    totals_NC = softmax(logits_NC).cumsum(axis=1)
    truth_N = (random.random((rows, 1)) > totals_NC).sum(axis=1).clip(max=len(labels) - 1)
    return logits_NC, truth_N.astype(np.int32)


def found(logits_NC, truth_N, task=None):
    return calibration(task or single(), Outputs.of(logits_NC), truth_N)


@pytest.mark.parametrize("labels", [LABELS, LABELS[:2]], ids=len)
def test_brier_score_and_log_loss_are_those_of_scikit_learn(labels):
    logits_NC, truth_N = drawn(500, labels=labels)
    scores_NC = softmax(logits_NC).astype(np.float64)
    result = found(logits_NC, truth_N, single(labels))
    inputs = scores_NC[:, 1] if len(labels) == 2 else scores_NC / scores_NC.sum(1, keepdims=True)
    assert result.brier == pytest.approx(brier_score_loss(truth_N, inputs), rel=1e-5)
    assert result.log_loss == pytest.approx(log_loss(truth_N, inputs), rel=1e-5)


def test_the_labels_of_a_multi_label_task_count_alike():
    random = np.random.default_rng(0)
    logits_NC = random.normal(0, 2, (400, 3)).astype(np.float32)
    truth_NC = (random.random((400, 3)) < sigmoid(logits_NC)).astype(np.int8)
    result = found(logits_NC, truth_NC, MultiLabelTask(labels=LABELS, metric=Metric.MICRO_F1))
    scores_K = sigmoid(logits_NC).ravel()
    assert result.brier == pytest.approx(brier_score_loss(truth_NC.ravel(), scores_K), rel=1e-5)
    assert result.log_loss == pytest.approx(log_loss(truth_NC.ravel(), scores_K), rel=1e-4)
    assert sum(cell.predictions for cell in result.bins) == truth_NC.size


def test_bins_are_those_of_scikit_learn():
    logits_NC, truth_N = drawn(3001)
    result = found(logits_NC, truth_N)
    scores_NC = softmax(logits_NC)
    right_N = scores_NC.argmax(axis=1) == truth_N
    curve = calibration_curve(right_N, scores_NC.max(axis=1), n_bins=15, strategy="quantile")
    shares, chances = curve
    assert [cell.right for cell in result.bins] == pytest.approx(shares, abs=0.01)
    assert [cell.probability for cell in result.bins] == pytest.approx(chances, abs=0.01)
    weights = [cell.predictions / 3001 for cell in result.bins]
    assert result.error == pytest.approx(float(np.abs(shares - chances) @ weights), abs=1e-3)


def test_perfect_probabilities_have_an_interval_from_zero():
    assert found(*drawn(1000)).low == 0.0


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_interval_holds_the_error_of_many_rows(scale):
    def of(rows, seed):
        logits_NC, truth_N = drawn(rows, seed)
        return found(logits_NC * scale, truth_N)

    true = of(200_000, seed=0).error
    results = [of(500, seed) for seed in range(1, 21)]
    assert min(result.low for result in results) > 0
    assert sum(result.low <= true <= result.high for result in results) >= 16


def test_labels_that_occur_together_are_not_independent():
    random = np.random.default_rng(0)
    task = MultiLabelTask(labels=tuple("abcdefgh"), metric=Metric.MICRO_F1)
    above = 0
    for _ in range(10):
        logits_N1 = random.normal(0, 1, (300, 1)).astype(np.float32)
        true_N1 = (random.random((300, 1)) < sigmoid(logits_N1)).astype(np.int8)
        result = found(np.repeat(logits_N1, 8, axis=1), np.repeat(true_N1, 8, axis=1), task)
        above += result.low > 0
    assert above <= 2


def test_equal_probabilities_do_not_depend_on_the_order_of_the_rows():
    logits_NC = np.log(np.tile(np.array([0.7, 0.2, 0.1], np.float32), (1000, 1)))
    result = found(logits_NC, np.repeat(np.arange(3), (700, 200, 100)).astype(np.int32))
    assert result.low == 0.0
    assert result.error < 0.1


def test_many_rows_are_sampled(monkeypatch):
    monkeypatch.setattr("pipework.scoring.calibration.MAX_PREDICTIONS", 500)
    result = found(*drawn(2000))
    assert sum(cell.predictions for cell in result.bins) == 500
    assert result.low == 0.0


def test_logits_that_are_not_finite_have_no_calibration():
    for value in (np.nan, np.inf):
        logits_NC, truth_N = drawn(50)
        logits_NC[3, 1] = value
        assert found(logits_NC, truth_N) is None


def test_certain_and_right_predictions_have_no_loss():
    truth_N = np.arange(30, dtype=np.int32) % 3
    result = found(np.eye(3, dtype=np.float32)[truth_N] * 200, truth_N)
    assert str(result).endswith("Brier score 0.0000, log loss 0.0000")


def test_few_rows_have_few_bins():
    result = found(*drawn(39))
    assert [cell.predictions for cell in result.bins] == [39]
    assert result.low <= result.error <= result.high
    single_row = found(*drawn(1))
    assert (single_row.low, single_row.high) == (0.0, 1.0)


def test_an_engine_is_compared_in_the_bins_of_its_checkpoint():
    logits_NC, truth_N = drawn(400)
    before = Outputs.of(logits_NC)
    same = calibration_change(single(), before, before, truth_N)
    assert same.reference == same.engine == found(logits_NC, truth_N).error
    assert same.brier_engine == found(logits_NC, truth_N).brier
    sharp = calibration_change(single(), before, Outputs.of(4 * logits_NC), truth_N)
    assert sharp.engine == pytest.approx(found(4 * logits_NC, truth_N).error, abs=0.01)
    assert sharp.change > 0.1
    flipped_NC = logits_NC.copy()
    unsure = np.ptp(np.sort(softmax(logits_NC), axis=1)[:, -2:], axis=1).argmin()
    flipped_NC[unsure] = logits_NC[unsure][::-1]  # one label, and hardly a probability
    flipped = calibration_change(single(), before, Outputs.of(flipped_NC), truth_N)
    assert abs(flipped.change) < 2 / 400


def test_a_regression_and_no_rows_have_none():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    assert found(np.ones((3, 1), np.float32), np.ones(3, np.float32), task) is None
    assert found(np.ones((0, 3), np.float32), np.ones(0, np.int32)) is None
