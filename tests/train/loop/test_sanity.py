import math

import numpy as np
import pytest

from pipework.errors import CheckFailedError
from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import evaluate
from pipework.train.loop.sanity import check_finite, findings

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
VALUE = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)


def scored(predictions, truth=(0, 0, 1, 1)):
    logits = np.eye(2, dtype=np.float32)[list(predictions)]
    return evaluate(logits, np.array(truth, np.int32), TASK)


def test_a_sound_run_has_no_findings():
    assert findings([0.7, 0.2], scored([0, 0, 1, 0]), 1e-4) == ()


def test_constant_predictions_name_the_learning_rate():
    (finding,) = findings([0.7, 0.6], scored([1, 1, 1, 1]), 1e-4)
    assert "every dev row is predicted 'b'" in finding
    assert "train.learning_rate (now 0.0001)" in finding


def test_a_flat_loss_with_chance_accuracy_is_reported():
    (finding,) = findings([0.70, 0.71, 0.69, 0.699], scored([0, 1, 1, 0]), 1e-4)
    assert "did not fall (0.700 at the start, 0.699 at the end)" in finding


@pytest.mark.parametrize("losses", [[0.62, 0.45, 0.41, 0.61], [0.05, 0.051]])
def test_a_noisy_or_flat_loss_of_a_good_model_is_no_finding(losses):
    truth = [0, 1] * 20
    assert findings(losses, scored(truth, truth), 1e-4) == ()


def test_accuracy_below_the_most_frequent_label_is_reported():
    (finding,) = findings([0.7, 0.2], scored([1, 0, 0, 0]), 1e-4)
    assert "below that of always predicting the most frequent label (0.500)" in finding


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf)])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run(loss, norm):
    with pytest.raises(CheckFailedError, match="at step 7") as caught:
        check_finite(loss, norm, 7, 0.5)
    assert "lower train.learning_rate (now 0.5)" in caught.value.hint


def test_constant_predictions_of_a_regression_are_reported():
    truth_N = np.array([0, 1, 2], np.float32)
    constant = evaluate(np.ones((3, 1), np.float32), truth_N, VALUE)
    (finding,) = findings([1.0, 0.9], constant, 1e-4)
    assert finding.startswith("dev pearson is 0.000; change train.learning_rate")
    assert findings([1.0, 0.9], evaluate(truth_N[:, None], truth_N, VALUE), 1e-4) == ()
