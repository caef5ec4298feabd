import time

import numpy as np
import pytest

from pipework.run_folder.task import Metric, Task, TaskKind
from pipework.scoring.evaluation import evaluate
from pipework.train.report.linear_baseline import LinearBaseline
from pipework.train.report.significance import Significance, compare_to_baseline

TASK = Task(kind=TaskKind.SINGLE_LABEL, labels=("a", "b"), metric=Metric.ACCURACY)
ROWS = 2000
generator = np.random.default_rng(0)
TRUTH = generator.integers(2, size=ROWS)


def logits_of(right):
    """Logits of which the share `right` is correct."""
    predicted = np.where(generator.random(ROWS) < right, TRUTH, 1 - TRUTH)
    return np.eye(2, dtype=np.float32)[predicted]


def baseline(logits, task=TASK, truth=TRUTH):
    return LinearBaseline(
        name="a linear SVM",
        split="test",
        evaluation=evaluate(logits, truth, task),
        logits_NC=logits,
        task=task,
        rows=10,
        all_rows=10,
        seconds=1,
    )


@pytest.mark.parametrize(
    ("model", "outcome", "text"),
    [
        (
            0.85,
            Significance.BETTER,
            "The model beats a linear baseline trained on the same rows: test accuracy",
        ),
        (
            0.8,
            Significance.UNDECIDED,
            "is not significantly better than a linear baseline trained on the same rows: ",
        ),
        (
            0.75,
            Significance.WORSE,
            "is significantly worse than a linear baseline trained on the same rows: test accuracy",
        ),
    ],
)
def test_the_result_is_reported_in_one_sentence(model, outcome, text):
    difference = compare_to_baseline(logits_of(model), TRUTH, TASK, baseline(logits_of(0.8)))
    assert difference.outcome is outcome
    assert text in difference.sentence
    assert f"{difference.model:.4f} vs {difference.baseline:.4f}" in difference.sentence


def test_the_interval_is_computed_from_paired_rows():
    ours = logits_of(0.8)
    # Similar outputs have a narrower interval.
    other = np.where(generator.random(ROWS)[:, None] < 0.05, logits_of(0.5), ours)
    difference = compare_to_baseline(ours, TRUTH, TASK, baseline(other))
    differs = (ours.argmax(1) == TRUTH) * 1.0 - (other.argmax(1) == TRUTH)
    half = 1.96 * differs.std() / np.sqrt(ROWS)
    assert difference.low == pytest.approx(differs.mean() - half, abs=0.002)
    assert difference.high == pytest.approx(differs.mean() + half, abs=0.002)


def test_identical_logits_have_no_difference():
    logits = logits_of(0.8)
    difference = compare_to_baseline(logits, TRUTH, TASK, baseline(logits))
    assert (difference.low, difference.high, difference.outcome) == (0, 0, Significance.UNDECIDED)


def test_a_regression_is_compared_by_its_own_metric():
    task = Task(kind=TaskKind.REGRESSION, labels=("score",), metric=Metric.PEARSON)
    truth = generator.random(ROWS, dtype=np.float32)
    near, far = (
        (truth + size * generator.standard_normal(ROWS)).astype(np.float32)[:, None]
        for size in (0.1, 0.3)
    )
    difference = compare_to_baseline(near, truth, task, baseline(far, task, truth))
    assert difference.outcome is Significance.BETTER
    assert "the same rows: test Pearson" in difference.sentence


def test_the_baseline_keeps_its_own_thresholds():
    task = Task(kind=TaskKind.MULTI_LABEL, labels=("a",), metric=Metric.MICRO_F1, thresholds=(0.5,))
    own = task.model_copy(update={"thresholds": (0.1,)})
    truth = TRUTH[:, None].astype(np.int8)
    logits = np.where(truth == 1, 1, -1).astype(np.float32)
    shifted = logits - np.float32(2)  # right only with its own thresholds
    difference = compare_to_baseline(logits, truth, task, baseline(shifted, own, truth))
    assert (difference.model, difference.baseline) == (1, 1)
    assert (difference.low, difference.high) == (0, 0)


@pytest.mark.parametrize(("rows", "classes"), [(100_000, 2), (2000, 500)])
def test_the_comparison_takes_seconds_for_many_rows_and_many_classes(rows, classes):
    labels = tuple(f"{number}" for number in range(classes))
    task = TASK.model_copy(update={"labels": labels, "metric": Metric.MACRO_F1})
    truth = generator.integers(classes, size=rows)
    logits = generator.random((rows, classes), dtype=np.float32)
    other = baseline(logits, task, truth)
    start = time.process_time()
    compare_to_baseline(logits, truth, task, other)
    assert time.process_time() - start < 20
