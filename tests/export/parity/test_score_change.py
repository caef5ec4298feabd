import numpy as np
import pytest

from pipework.export.config import TOLERANCES
from pipework.export.parity.score_change import compare_scores
from pipework.run_folder.engine_record import Precision
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
ROWS = 408
TRUTH = np.random.default_rng(0).integers(2, size=ROWS)
RIGHT = np.eye(2, dtype=np.float32)[TRUTH]


def lost(rows):
    """Logits with the first rows wrong."""
    found = RIGHT.copy()
    found[:rows] = 1 - found[:rows]
    return found


@pytest.mark.parametrize(("rows", "drop"), [(0, 0), (1, 0), (2, 2 / ROWS), (40, 40 / ROWS)])
def test_a_score_drop_counts_from_the_second_changed_row(rows, drop):
    assert compare_scores(
        Outputs.of(RIGHT), Outputs.of(lost(rows)), TRUTH, TASK
    ).drop == pytest.approx(drop)


def test_a_higher_score_is_no_drop():
    found = compare_scores(Outputs.of(lost(5)), Outputs.of(RIGHT), TRUTH, TASK)
    assert found.drop == 0
    assert found.record().change == pytest.approx(5 / ROWS)


def test_a_single_changed_row_of_a_small_dev_set_does_not_count():
    assert compare_scores(Outputs.of(RIGHT[:8]), Outputs.of(lost(1)[:8]), TRUTH[:8], TASK).drop == 0
    assert (
        compare_scores(Outputs.of(RIGHT[:8]), Outputs.of(lost(2)[:8]), TRUTH[:8], TASK).drop == 0.25
    )
    assert compare_scores(Outputs.of(RIGHT[:1]), Outputs.of(lost(1)[:1]), TRUTH[:1], TASK).drop == 1


def test_the_interval_has_the_expected_width():
    scores = compare_scores(Outputs.of(RIGHT), Outputs.of(lost(20)), TRUTH, TASK).record()
    assert scores.low < scores.change < scores.high < 0
    half = 1.96 * np.sqrt(20) / ROWS
    assert scores.high - scores.low == pytest.approx(2 * half, rel=0.2)


def test_nan_logits_have_a_score():
    assert compare_scores(Outputs.of(RIGHT), Outputs.of(RIGHT * np.nan), TRUTH, TASK).drop > 0.3


def test_a_regression_is_scored_by_its_correlation():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    values = np.random.default_rng(0).random((50, 1), np.float32)
    found = compare_scores(Outputs.of(values), Outputs.of(values[::-1]), values[:, 0], task)
    assert found.before == pytest.approx(1)
    assert found.drop > 0.5


def test_rounding_keeps_a_correlation_within_the_tolerance():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    chance = np.random.default_rng(0)
    truth, noise = chance.normal(size=(2, 400))
    values = (truth + noise)[:, None].astype(np.float32)
    rounded = values - np.float32(1e-6) * truth[:, None].astype(np.float32)
    found = compare_scores(Outputs.of(values), Outputs.of(rounded), truth, task)
    assert found.after < found.before
    assert 0 < found.drop <= TOLERANCES[Precision.FP32].score_drop


@pytest.mark.parametrize("metric", [Metric.PEARSON, Metric.SPEARMAN])
def test_a_correlation_drop_by_one_value_does_not_count(metric):
    task = RegressionTask(labels=("score",), metric=metric)
    truth = np.arange(40, dtype=np.float32)
    one, two = truth.copy(), truth.copy()
    one[20] += 5.5
    two[[10, 30]] += 5.5
    assert (
        compare_scores(Outputs.of(truth[:, None]), Outputs.of(one[:, None]), truth, task).drop == 0
    )
    assert (
        compare_scores(Outputs.of(truth[:, None]), Outputs.of(two[:, None]), truth, task).drop
        > 1e-4
    )
