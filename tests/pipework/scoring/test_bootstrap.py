import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.bootstrap import Answers, paired_interval, scorer

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
chance = np.random.default_rng(0)
TRUTH = chance.integers(2, size=500)


def answers(right):
    given = np.where(chance.random(len(TRUTH)) < right, TRUTH, 1 - TRUTH)
    return Answers(logits_NC=np.eye(2, dtype=np.float32)[given], task=TASK)


def test_rows_that_are_paired_tell_more_than_rows_that_are_not():
    ours = answers(0.8)
    alike = Answers(logits_NC=ours.logits_NC.copy(), task=TASK)
    alike.logits_NC[:10] = 1 - alike.logits_NC[:10]
    near, far = (paired_interval(ours, other, TRUTH) for other in (alike, answers(0.8)))
    assert near.high - near.low < (far.high - far.low) / 2


def test_the_same_question_has_the_same_answer():
    two = answers(0.8), answers(0.7)
    assert paired_interval(*two, TRUTH) == paired_interval(*two, TRUTH)


def test_any_rows_are_scored_and_may_repeat():
    score = scorer(answers(1.0), TRUTH)
    assert score(np.array([3, 3, 5])) == 1
    assert score(np.arange(len(TRUTH))) == pytest.approx(1)
