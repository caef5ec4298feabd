import re
import time
from dataclasses import replace

import numpy as np
import pytest

from pipework.tasks.kinds import Metric
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.report.baseline import Baseline
from pipework.train.report.verdict import (
    Outcome,
    ScoredRows,
    TrainingHistory,
    constant_prediction,
    judge,
)

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
ROWS = 2000
generator = np.random.default_rng(0)
TRUTH = generator.integers(2, size=ROWS)


def logits_of(right):
    """Logits of which the share `right` is correct."""
    predicted = np.where(generator.random(ROWS) < right, TRUTH, 1 - TRUTH)
    return np.eye(2, dtype=np.float32)[predicted]


def constant(label):
    return np.tile(np.eye(2, dtype=np.float32)[label], (ROWS, 1))


def baseline(logits, task=TASK, truth=TRUTH):
    return Baseline(
        name="a linear SVM",
        split="test",
        evaluation=task.evaluate(Outputs.of(logits), truth),
        outputs=Outputs.of(logits),
        task=task,
        rows=10,
        all_rows=10,
        seconds=1,
    )


NO_LEAKS = np.zeros(ROWS, np.bool_)
SOUND = TrainingHistory(
    losses=[0.7, 0.5, 0.3], best_step=90, step=90, shortened_from=None, learning_rate=1e-4
)
FLAT = replace(SOUND, losses=[0.70, 0.71, 0.69, 0.699])
OVERFITTED = replace(SOUND, best_step=10)
BALANCED = replace(SOUND, class_weights="balanced")
TRIAL = replace(SOUND, shortened_from=900)
RARE = (generator.random(ROWS) < 0.05).astype(np.int64)  # 5 % are positive
# Recall 0.95, and 8 % of the negative rows are predicted positive: accuracy below 0.95.
DETECTED = np.where(RARE, generator.random(ROWS) < 0.95, generator.random(ROWS) < 0.08)
SEVERAL = np.stack([0 * RARE, RARE], axis=1).astype(np.int8)
LABELS = MultiLabelTask(labels=("a", "b"), metric=Metric.MACRO_F1)
LEAKED = generator.random(ROWS) < 0.3
# Right for the leaked rows, and as good as the baseline for the others.
MEMORISED = np.where(LEAKED[:, None], logits_of(1.0), logits_of(0.8))


def rows_of(logits, truth=TRUTH, task=TASK, leaked=NO_LEAKS):
    return ScoredRows(
        split="test", outputs=Outputs.of(logits), truth=truth, task=task, leaked_N=leaked
    )


def judged(logits, other=None, history=SOUND, **rows):
    scored = rows_of(logits, **rows)
    linear = baseline(logits_of(0.8) if other is None else other, scored.task, scored.truth)
    return judge(scored, linear, history)


def of_metric(metric):
    return {"truth": RARE, "task": TASK.model_copy(update={"metric": metric})}


LINEAR = "a linear SVM, trained on the same rows: test accuracy"
BETTER = f"The model beats {LINEAR}"
UNDECIDED = f"The model is not significantly better than {LINEAR}"
NOTHING = "The model learned nothing useful: it is not better than predicting '"
RANDOM = logits_of(0.5)
RARE_LOGITS = np.eye(2, dtype=np.float32)[DETECTED.astype(int)]
ZEROS = np.eye(2, dtype=np.float32)[np.zeros(ROWS, int)]
CASES = {
    # the verdict; outcome, the begin of the sentence, whether it fails, a part of the findings
    "better": (lambda: judged(logits_of(0.85)), "better", BETTER, False, None),
    "equal": (lambda: judged(logits_of(0.8)), "undecided", UNDECIDED, False, "best near the end"),
    "worse": (
        lambda: judged(logits_of(0.75), history=OVERFITTED),
        "worse",
        f"The model is significantly worse than {LINEAR}",
        False,
        "has not risen since step 10 of 90: the model overfits",
    ),
    "constant": (
        lambda: judged(constant(1), history=FLAT),
        "nothing",
        f"{NOTHING}{'ab'[int(TRUTH.mean() > 0.5)]}' for every row: test accuracy",
        True,
        "did not fall (0.700 at the start, 0.699 at the end): change train.learning_rate (now",
    ),
    "constant, and the baseline is no better": (
        lambda: judged(constant(1), other=constant(0)),
        "nothing",
        NOTHING,
        True,
        "best near the end, at step 90 of 90: raise train.epochs",
    ),
    "flat and at chance": (lambda: judged(RANDOM, history=FLAT), "nothing", NOTHING, True, "fall"),
    "flat and good": (lambda: judged(logits_of(0.9), history=FLAT), "better", BETTER, False, None),
    "overfitted": (
        lambda: judged(constant(0), history=OVERFITTED),
        "nothing",
        NOTHING,
        True,
        "the score on dev has not risen since step 10 of 90: the model overfits or has too few",
    ),
    "collapsed to the common label": (
        lambda: judged(ZEROS, other=ZEROS, **of_metric(Metric.MACRO_F1)),
        "nothing",
        f"{NOTHING}a' for every row",
        True,
        "for every row 94 % of the rows have the same label: set train.class_weights to balanced",
    ),
    "collapsed to the common label with balanced weights": (
        lambda: judged(ZEROS, other=ZEROS, history=BALANCED, **of_metric(Metric.MACRO_F1)),
        "nothing",
        f"{NOTHING}a' for every row",
        True,
        "the model predicts a for every row the score on dev was best near the end",
    ),
    "collapsed by accuracy with balanced weights": (
        lambda: judged(ZEROS, other=ZEROS, history=BALANCED, **of_metric(Metric.ACCURACY)),
        "nothing",
        f"{NOTHING}a' for every row",
        True,
        "94 % of the rows have the same label: set task.metric to macro_f1",
    ),
    "collapsed to no label of several": (
        lambda: judge(rows_of(-np.ones((ROWS, 2), np.float32), SEVERAL, LABELS), None, SOUND),
        "nothing",
        f"{NOTHING}b' for every row",
        True,
        "no label for every row the most frequent label is in 6 % of the rows: set train.class",
    ),
    "too short": (
        lambda: judged(constant(0), history=TRIAL),
        "nothing",
        NOTHING,
        False,
        "train.max_steps ended the run after 90 of 900 steps: train longer",
    ),
    "leaked": (
        lambda: judged(MEMORISED, other=logits_of(0.8), leaked=LEAKED),
        "undecided",
        UNDECIDED,
        False,
        None,
    ),
    "imbalanced, by F1": (
        lambda: judged(RARE_LOGITS, other=ZEROS, **of_metric(Metric.MACRO_F1)),
        "better",
        "The model beats a linear SVM",
        False,
        None,
    ),
    "imbalanced, by F1 of the rare label": (
        lambda: judged(RARE_LOGITS, other=ZEROS, **of_metric(Metric.F1)),
        "better",
        "The model beats a linear SVM",
        False,
        None,
    ),
    "the common label only, by F1 of the rare label": (
        lambda: judged(ZEROS, other=ZEROS, **of_metric(Metric.F1)),
        "nothing",
        f"{NOTHING}b' for every row: test F1 0.0000 vs",
        True,
        None,
    ),
    "imbalanced, by accuracy": (
        lambda: judged(RARE_LOGITS, other=ZEROS, **of_metric(Metric.ACCURACY)),
        "nothing",
        f"{NOTHING}a' for every row",
        True,
        "set task.metric to matthews or macro_f1 (now accuracy)",
    ),
    "one label": (
        lambda: judged(ZEROS, other=ZEROS, truth=np.zeros(ROWS, int)),
        "undecided",
        UNDECIDED.replace(LINEAR, "predicting 'a' for every row"),
        False,
        None,
    ),
}


@pytest.mark.parametrize(
    ("verdict", "outcome", "text", "failed", "finding"), CASES.values(), ids=CASES
)
def test_the_verdict_and_its_findings_and_whether_the_run_fails(
    verdict, outcome, text, failed, finding
):
    found = verdict()
    assert found.outcome == outcome
    assert found.sentence.startswith(text)
    assert found.failed is failed
    assert (outcome == "better") == (found.findings == ())
    assert finding is None or finding in " ".join(found.findings)


def test_scores_with_and_without_leaked_rows_are_in_the_sentence():
    sentence = judged(MEMORISED, leaked=LEAKED).sentence
    assert re.search(r" [56]\d\d of 2,000 test rows are also in train and left out: ", sentence)
    with_leaks, without = map(float, re.findall(r"(0\.\d+) (?:with them|without)", sentence))
    assert with_leaks == pytest.approx(0.86, abs=0.02)
    assert without == pytest.approx(0.8, abs=0.02)
    everything = judged(logits_of(0.9), leaked=~NO_LEAKS)
    assert everything.sentence.endswith(" All test rows are also in train.")


def test_a_run_without_a_baseline_is_compared_with_a_constant():
    verdict = judge(rows_of(logits_of(0.8)), None, SOUND)
    assert (verdict.outcome, verdict.linear) == (Outcome.BETTER, None)
    assert verdict.sentence.startswith("The model beats predicting '")
    few = ScoredRows(
        split="dev",
        outputs=Outputs.of(np.eye(2, dtype=np.float32)[[0, 1, 1]]),
        truth=np.array([0, 1, 0]),
        task=TASK,
        leaked_N=NO_LEAKS[:3],
    )
    same = replace(few, outputs=Outputs.of(np.eye(2, dtype=np.float32)[[0, 1, 0]]))
    assert judge(few, None, SOUND).outcome is Outcome.NOTHING
    assert judge(same, None, SOUND).outcome is Outcome.UNDECIDED


def test_the_constant_of_several_labels_has_as_many_as_a_row():
    labels = ("a", "b", "c")
    task = MultiLabelTask(labels=labels, metric=Metric.MICRO_F1)
    truth = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1]], np.int8)
    name, outputs = constant_prediction(
        rows_of(np.zeros((3, 3), np.float32), truth, task, NO_LEAKS[:3])
    )
    assert name == "predicting 'c', 'a' for every row"
    assert (outputs.outputs.values > 0).tolist() == [[True, False, True]] * 3
    weak = task.model_copy(update={"thresholds": (0.00001,) * 3})
    _, same = constant_prediction(rows_of(np.zeros((3, 3), np.float32), truth, weak, NO_LEAKS[:3]))
    predicted_NC = same.task.predicted_labels(same.outputs.values)
    assert predicted_NC.tolist() == [[True, False, True]] * 3


def test_the_interval_is_computed_from_paired_rows():
    ours = logits_of(0.8)
    # Similar outputs have a narrower interval.
    other = np.where(generator.random(ROWS)[:, None] < 0.05, logits_of(0.5), ours)
    difference = judged(ours, other).linear
    differs = (ours.argmax(1) == TRUTH) * 1.0 - (other.argmax(1) == TRUTH)
    half = 1.96 * differs.std() / np.sqrt(ROWS)
    assert difference.low == pytest.approx(differs.mean() - half, abs=0.002)
    assert difference.high == pytest.approx(differs.mean() + half, abs=0.002)


def test_identical_logits_have_no_difference():
    logits = logits_of(0.8)
    verdict = judged(logits, logits)
    assert (verdict.linear.low, verdict.linear.high, verdict.outcome) == (0, 0, Outcome.UNDECIDED)


def test_a_regression_is_compared_by_its_own_metric():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    truth = generator.random(ROWS, dtype=np.float32)
    near, far = (
        (truth + size * generator.standard_normal(ROWS)).astype(np.float32)[:, None]
        for size in (0.1, 0.3)
    )
    verdict = judged(near, far, truth=truth, task=task)
    assert verdict.outcome is Outcome.BETTER
    assert "the same rows: test Pearson" in verdict.sentence
    same = judged(np.ones_like(near), far, truth=truth, task=task)
    assert (same.outcome, same.failed) == (Outcome.NOTHING, True)
    assert "predicting the same value for every row: test Pearson 0.0000" in same.sentence
    assert "label" not in " ".join(same.findings).replace("the labels can be learned", "")


def test_the_baseline_keeps_its_own_thresholds():
    task = MultiLabelTask(labels=("a",), metric=Metric.MICRO_F1, thresholds=(0.5,))
    own = task.model_copy(update={"thresholds": (0.1,)})
    truth = TRUTH[:, None].astype(np.int8)
    logits = np.where(truth == 1, 1, -1).astype(np.float32)
    shifted = logits - np.float32(2)  # right only with its own thresholds
    difference = judge(rows_of(logits, truth, task), baseline(shifted, own, truth), SOUND).linear
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
    rows = rows_of(logits, truth, task, np.zeros(rows, np.bool_))
    judge(rows, other, SOUND)
    assert time.process_time() - start < 20
