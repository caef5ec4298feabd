import time

import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import evaluate
from pipework.train.report.linear_baseline import Baseline
from pipework.train.report.significance import Outcome, verdict

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
ROWS = 2000
chance = np.random.default_rng(0)
TRUTH = chance.integers(2, size=ROWS)


def answers(right):
    """Logits of which a share is right."""
    given = np.where(chance.random(ROWS) < right, TRUTH, 1 - TRUTH)
    return np.eye(2, dtype=np.float32)[given]


def baseline(logits, task=TASK, truth=TRUTH):
    return Baseline(
        name="a linear SVM",
        evaluation=evaluate(logits, truth, task),
        logits_NC=logits,
        task=task,
        rows=10,
        all_rows=10,
        seconds=1,
    )


@pytest.mark.parametrize(
    ("model", "outcome", "says"),
    [
        (0.85, Outcome.BETTER, "The model beats a linear model trained on the same rows: accuracy"),
        (0.8, Outcome.UNDECIDED, "does not beat a linear model trained on the same rows by more"),
        (0.75, Outcome.WORSE, "does not beat a linear model trained on the same rows: it is worse"),
    ],
)
def test_the_verdict_is_said_plainly(model, outcome, says):
    found = verdict(answers(model), TRUTH, TASK, baseline(answers(0.8)))
    assert found.outcome is outcome
    assert says in found.sentence
    assert f"{found.model:.4f} against {found.baseline:.4f}" in found.sentence


def test_the_interval_is_that_of_paired_rows():
    ours = answers(0.8)
    theirs = np.where(chance.random(ROWS)[:, None] < 0.05, answers(0.5), ours)  # alike: tells more
    found = verdict(ours, TRUTH, TASK, baseline(theirs))
    differs = (ours.argmax(1) == TRUTH) * 1.0 - (theirs.argmax(1) == TRUTH)
    half = 1.96 * differs.std() / np.sqrt(ROWS)
    assert found.low == pytest.approx(differs.mean() - half, abs=0.002)
    assert found.high == pytest.approx(differs.mean() + half, abs=0.002)


def test_answers_that_are_the_same_differ_by_nothing():
    logits = answers(0.8)
    found = verdict(logits, TRUTH, TASK, baseline(logits))
    assert (found.low, found.high, found.outcome) == (0, 0, Outcome.UNDECIDED)


def test_a_regression_is_compared_by_its_own_score():
    task = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
    truth = chance.random(ROWS, dtype=np.float32)
    near, far = (
        (truth + size * chance.standard_normal(ROWS)).astype(np.float32)[:, None]
        for size in (0.1, 0.3)
    )
    found = verdict(near, truth, task, baseline(far, task, truth))
    assert found.outcome is Outcome.BETTER
    assert "the same rows: Pearson" in found.sentence


def test_the_baseline_keeps_its_own_thresholds():
    task = Task(kind=TaskKind.MULTI_LABEL, labels=("a",), metric=Metric.MICRO_F1, thresholds=(0.5,))
    own = task.model_copy(update={"thresholds": (0.1,)})
    truth = TRUTH[:, None].astype(np.int8)
    logits = np.where(truth == 1, 1, -1).astype(np.float32)
    shifted = logits - np.float32(2)  # right with its own thresholds, and with no others
    found = verdict(logits, truth, task, baseline(shifted, own, truth))
    assert (found.model, found.baseline) == (1, 1)
    assert (found.low, found.high) == (0, 0)


@pytest.mark.parametrize(("rows", "classes"), [(100_000, 2), (2000, 500)])
def test_the_verdict_takes_seconds_for_many_rows_and_many_classes(rows, classes):
    labels = tuple(f"{number}" for number in range(classes))
    task = TASK.model_copy(update={"labels": labels, "metric": Metric.MACRO_F1})
    truth = chance.integers(classes, size=rows)
    logits = chance.random((rows, classes), dtype=np.float32)
    theirs = baseline(logits, task, truth)
    start = time.process_time()
    verdict(logits, truth, task, theirs)
    assert time.process_time() - start < 20
