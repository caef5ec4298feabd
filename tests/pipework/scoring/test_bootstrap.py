import numpy as np
import pytest

from pipework.scoring.bootstrap import TaskOutputs, paired_interval, paired_runs_interval
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
random = np.random.default_rng(0)
TRUTH = random.integers(2, size=500)


def outputs(accuracy):
    predicted = np.where(random.random(len(TRUTH)) < accuracy, TRUTH, 1 - TRUTH)
    return TaskOutputs(outputs=Outputs.of(np.eye(2, dtype=np.float32)[predicted]), task=TASK)


def test_similar_models_have_a_narrower_interval_than_independent_ones():
    model = outputs(0.8)
    similar = TaskOutputs(outputs=Outputs.of(model.outputs.values.copy()), task=TASK)
    similar.outputs.values[:10] = 1 - similar.outputs.values[:10]
    near, far = (paired_interval(model, other, TRUTH) for other in (similar, outputs(0.8)))
    assert near.high - near.low < (far.high - far.low) / 2


def test_the_interval_is_reproducible():
    models = outputs(0.8), outputs(0.7)
    assert paired_interval(*models, TRUTH) == paired_interval(*models, TRUTH)


def test_the_interval_of_several_runs_contains_the_mean_difference_and_the_spread_of_seeds():
    before = [outputs(0.8) for _ in range(3)]
    equal = paired_runs_interval(before, [outputs(0.9) for _ in range(3)], TRUTH)
    assert 0 < equal.low < 0.1 < equal.high + 0.03
    unequal = paired_runs_interval(before, [outputs(score) for score in (0.99, 0.9, 0.81)], TRUTH)
    assert unequal.high - unequal.low > 1.5 * (equal.high - equal.low)


def test_the_interval_of_a_single_pair_of_runs_is_the_paired_interval():
    before, after = outputs(0.8), outputs(0.7)
    assert paired_runs_interval([before], [after], TRUTH) == paired_interval(before, after, TRUTH)
    three = paired_runs_interval([before] * 3, [after] * 3, TRUTH)
    assert three == paired_interval(before, after, TRUTH)


def test_any_rows_are_scored_and_may_repeat():
    score = outputs(1.0).scorer(TRUTH)
    assert score(np.array([3, 3, 5])) == 1
    assert score(np.arange(len(TRUTH))) == pytest.approx(1)
