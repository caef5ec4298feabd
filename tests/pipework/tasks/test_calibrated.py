"""The fits of probabilities to labelled rows, against data whose probabilities are known."""

import numpy as np
import pytest

from pipework.tasks.calibrated import fit_platt, fit_temperature
from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.predictions import sigmoid
from pipework.tasks.single_label import SingleLabelTask

TOLERANCE = 0.05


def drawn(probabilities_NC, generator):
    """Return a label of each row, one-hot, drawn with these probabilities."""
    uniform_N1 = generator.random((len(probabilities_NC), 1))
    index_N = (probabilities_NC.cumsum(axis=1) < uniform_N1).sum(axis=1)
    return np.eye(probabilities_NC.shape[1], dtype=bool)[index_N]


@pytest.mark.parametrize("classes", [2, 15])
@pytest.mark.parametrize("temperature", [0.4, 1, 6])
def test_a_known_temperature_is_found(classes, temperature):
    generator = np.random.default_rng(0)
    logits_NC = generator.normal(0, 2, (8000, classes)).astype(np.float32)
    task = SingleLabelTask(labels=tuple("abcdefghijklmno"[:classes]), metric=Metric.ACCURACY)
    true_NC = drawn(task.probabilities(logits_NC), generator)
    found = task.calibrated(logits_NC * np.float32(temperature), true_NC.argmax(axis=1))
    assert found.temperature == pytest.approx(temperature, rel=TOLERANCE)
    assert found.uncalibrated == task


def test_known_scales_and_offsets_are_found():
    generator = np.random.default_rng(0)
    known = ((1.0, 0.0), (0.3, -1.0), (2.0, 1.0))
    task = MultiLabelTask(labels=("x", "y", "z"), metric=Metric.MICRO_F1, platt=known)
    logits_NC = generator.normal(0, 2, (40_000, 3)).astype(np.float32)
    truth_NC = generator.random((40_000, 3)) < task.probabilities(logits_NC)
    found = task.uncalibrated.calibrated(logits_NC, truth_NC)
    np.testing.assert_allclose(found.platt, known, atol=TOLERANCE)


def test_the_fit_is_described():
    task = SingleLabelTask(labels=("x", "y"), metric=Metric.ACCURACY, temperature=2.069)
    assert task.describe_decision() == "2 labels, softmax at temperature 2.07"
    assert task.describe_output().endswith(". Scores: the softmax of the logits divided by 2.069")
    assert task.uncalibrated.describe_output() == "2 labels: `x`, `y`"
    several = MultiLabelTask(labels=("x",), metric=Metric.MICRO_F1, platt=((0.5, -1.25),))
    assert several.describe_decision() == "1 label, a sigmoid each (calibrated)"
    scores = "Scores: the sigmoids of scale x logit + offset, `x` 0.5 and -1.25"
    assert several.describe_output() == f"1 label (several may apply): `x`. {scores}"


def test_rows_without_an_error_do_not_give_certainty():
    logits_NC = np.tile(np.array([[5, 0, 0]], np.float32), (250, 1))
    true_NC = np.tile(np.array([[True, False, False]]), (250, 1))
    temperature = fit_temperature(logits_NC, true_NC)
    task = SingleLabelTask(labels=("x", "y", "z"), metric=Metric.ACCURACY, temperature=temperature)
    wrong = 1 - task.probabilities(logits_NC[:1]).max()
    assert 1 / 1000 < wrong < 1 / 250  # about one wrong row of 250, spread over three labels


def test_few_rows_change_nothing():
    logits_NC = np.eye(49, 2, dtype=np.float32)
    assert fit_temperature(logits_NC, logits_NC != 0) == 1
    true_N = np.arange(1000) < 24  # the label of too few rows
    assert fit_platt(np.linspace(-1, 1, 1000, dtype=np.float32), true_N) == (1, 0)
    task = MultiLabelTask(labels=("x", "y"), metric=Metric.MICRO_F1)
    assert task.calibrated(logits_NC, logits_NC != 0) == task


def test_the_calibration_of_several_labels_changes_no_prediction():
    generator = np.random.default_rng(0)
    logits_NC = generator.normal(0, 6, (600, 3)).astype(np.float32)
    truth_NC = generator.random((600, 3)) < sigmoid(0.05 * logits_NC - 1)
    task = MultiLabelTask(labels=("x", "y", "z"), metric=Metric.MICRO_F1)
    fitted = task.calibrated(logits_NC, truth_NC)
    assert max(scale for scale, _ in fitted.platt) < 0.3
    np.testing.assert_array_equal(
        fitted.with_thresholds(logits_NC, truth_NC).predicted_labels(logits_NC),
        task.with_thresholds(logits_NC, truth_NC).predicted_labels(logits_NC),
    )


def test_a_label_whose_logits_mislead_keeps_them():
    logits_N = np.linspace(-1, 1, 1000, dtype=np.float32)
    assert fit_platt(logits_N, logits_N < 0) == (1, 0)


def test_rows_with_infinite_logits_are_left_out():
    generator = np.random.default_rng(0)
    logits_NC = generator.normal(0, 2, (500, 3)).astype(np.float32)
    true_NC = drawn(np.full((500, 3), 1 / 3), generator)
    found = [fit_temperature(logits_NC, true_NC), fit_platt(logits_NC[:, 0], true_NC[:, 0])]
    logits_NC, true_NC = np.repeat(logits_NC, 2, axis=0), np.repeat(true_NC, 2, axis=0)
    logits_NC[::2, 0] = np.inf
    assert found == [fit_temperature(logits_NC, true_NC), fit_platt(logits_NC[:, 0], true_NC[:, 0])]
