import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.bootstrap import TaskLogits, paired_interval, scorer

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
random = np.random.default_rng(0)
TRUTH = random.integers(2, size=500)


def outputs(accuracy):
    predicted = np.where(random.random(len(TRUTH)) < accuracy, TRUTH, 1 - TRUTH)
    return TaskLogits(logits_NC=np.eye(2, dtype=np.float32)[predicted], task=TASK)


def test_similar_models_have_a_narrower_interval_than_independent_ones():
    model = outputs(0.8)
    similar = TaskLogits(logits_NC=model.logits_NC.copy(), task=TASK)
    similar.logits_NC[:10] = 1 - similar.logits_NC[:10]
    near, far = (paired_interval(model, other, TRUTH) for other in (similar, outputs(0.8)))
    assert near.high - near.low < (far.high - far.low) / 2


def test_the_interval_is_reproducible():
    models = outputs(0.8), outputs(0.7)
    assert paired_interval(*models, TRUTH) == paired_interval(*models, TRUTH)


def test_any_rows_are_scored_and_may_repeat():
    score = scorer(outputs(1.0), TRUTH)
    assert score(np.array([3, 3, 5])) == 1
    assert score(np.arange(len(TRUTH))) == pytest.approx(1)
