"""The fits of probabilities to labelled rows, against data whose probabilities are known."""

import numpy as np
import pytest

from pipework.tasks.kinds import Metric
from pipework.tasks.logit_scale import LogitScale, fit_platt, fit_temperature
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
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
    found = task.fit_calibration(logits_NC * np.float32(temperature), true_NC.argmax(axis=1))
    assert 1 / found.scale[0] == pytest.approx(temperature, rel=TOLERANCE)
    assert found.offset == (0.0,)


def test_known_scales_and_offsets_are_found():
    generator = np.random.default_rng(0)
    known = LogitScale(scale=(1.0, 0.3, 2.0), offset=(0.0, -1.0, 1.0))
    task = MultiLabelTask(labels=("x", "y", "z"), metric=Metric.MICRO_F1)
    logits_NC = generator.normal(0, 2, (40_000, 3)).astype(np.float32)
    calibrated_NC = known.apply(Outputs.of(logits_NC)).values
    truth_NC = generator.random((40_000, 3)) < task.probabilities(calibrated_NC)
    found = task.fit_calibration(logits_NC, truth_NC)
    np.testing.assert_allclose(found.scale, known.scale, atol=TOLERANCE)
    np.testing.assert_allclose(found.offset, known.offset, atol=TOLERANCE)
    without = task.fit_calibration(logits_NC, truth_NC, offsets=False)
    assert without.offset == (0.0, 0.0, 0.0)
    assert without.scale[0] == pytest.approx(1, abs=TOLERANCE)


def test_the_fit_is_described():
    assert str(LogitScale(scale=(0.25,), offset=(0,))) == "all logits are divided by 4"
    several = LogitScale(scale=(0.5, 1), offset=(-1.25, 0))
    assert str(several) == "a scale and an offset for each of 2 labels"


@pytest.mark.parametrize("classes", [1, 3])
def test_a_scale_can_be_undone(classes):
    scale = LogitScale(scale=(0.5, 2, 4)[:classes], offset=(1, 0, -1)[:classes])
    before = Outputs.of(np.random.default_rng(0).normal(0, 2, (9, 3)).astype(np.float32))
    after = scale.apply(before)
    assert after.values.dtype == np.float32
    np.testing.assert_allclose(after.values[:, 0], before.values[:, 0] * 0.5 + 1)
    np.testing.assert_allclose(scale.undo(after).values, before.values, rtol=1e-6, atol=1e-6)


def test_rows_without_an_error_do_not_give_certainty():
    logits_NC = np.tile(np.array([[5, 0, 0]], np.float32), (250, 1))
    true_NC = np.tile(np.array([[True, False, False]]), (250, 1))
    temperature = fit_temperature(logits_NC, true_NC)
    task = SingleLabelTask(labels=("x", "y", "z"), metric=Metric.ACCURACY)
    wrong = 1 - task.probabilities(logits_NC[:1] / np.float32(temperature)).max()
    assert 1 / 1000 < wrong < 1 / 250  # about one wrong row of 250, spread over three labels


def test_few_rows_change_nothing():
    logits_NC = np.eye(49, 2, dtype=np.float32)
    assert fit_temperature(logits_NC, logits_NC != 0) == 1
    true_N = np.arange(1000) < 24  # the label of too few rows
    assert fit_platt(np.linspace(-1, 1, 1000, dtype=np.float32), true_N) == (1, 0)
    task = MultiLabelTask(labels=("x", "y"), metric=Metric.MICRO_F1)
    assert task.fit_calibration(logits_NC, logits_NC != 0) is None
    single = SingleLabelTask(labels=("x", "y"), metric=Metric.ACCURACY)
    assert single.fit_calibration(logits_NC, np.zeros(49, np.int32)) is None


def test_the_calibration_of_several_labels_changes_hardly_any_prediction():
    generator = np.random.default_rng(0)
    logits_NC = generator.normal(0, 6, (600, 3)).astype(np.float32)
    truth_NC = generator.random((600, 3)) < sigmoid(0.25 * logits_NC - 1)
    task = MultiLabelTask(labels=("x", "y", "z"), metric=Metric.MICRO_F1)
    fitted = task.fit_calibration(logits_NC, truth_NC)
    assert max(fitted.scale) < 0.4
    calibrated_NC = fitted.apply(Outputs.of(logits_NC)).values
    before_NC, after_NC = (
        task.with_thresholds(values_NC, truth_NC).predicted_labels(values_NC)
        for values_NC in (logits_NC, calibrated_NC)
    )
    assert (before_NC == after_NC).mean() > 0.98  # scores that are too close give no threshold


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
