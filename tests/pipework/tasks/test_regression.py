"""Decoding of a number."""

import numpy as np

from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import RegressionValue
from pipework.tasks.regression import RegressionTask

REGRESSION = RegressionTask(labels=("score",), metric=Metric.PEARSON)


def test_a_regression_predicts_a_number():
    assert REGRESSION.decode(Outputs.of(np.array([[2.5], [-1]], np.float32)), 1) == [
        RegressionValue(score=2.5),
        RegressionValue(score=-1),
    ]
    assert not REGRESSION.predicted_labels(np.array([[2.5]], np.float32)).any()
