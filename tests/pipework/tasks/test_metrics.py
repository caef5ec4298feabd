import re
import subprocess

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

from pipework.errors import ConfigError
from pipework.tasks import metrics
from pipework.tasks.kinds import Metric, Reported, metric_in_words
from pipework.tasks.metrics import (
    accuracy,
    confusion,
    directional_f1,
    matthews,
    pearson,
    roc_areas,
    spearman,
    tally_classes,
    tally_labels,
)
from pipework.tasks.multi_label import MultiLabelTask
from pipework.tasks.outputs import Outputs
from pipework.tasks.registry import task_type
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask
from pipework.train.config.data import TaskSettings

RELATIONS = (
    "Cause-Effect",
    "Component-Whole",
    "Content-Container",
    "Entity-Destination",
    "Entity-Origin",
    "Instrument-Agency",
    "Member-Collection",
    "Message-Topic",
    "Product-Producer",
)
DIRECTED = tuple(f"{name}({pair})" for name in RELATIONS for pair in ("e1,e2", "e2,e1"))
LABELS = ("Other", *DIRECTED)


@pytest.mark.parametrize("seed", range(10))
def test_single_label_scores_equal_those_of_scikit_learn(seed):
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 6))
    truth_N = random.integers(0, classes, 50)
    predicted_N = np.where(random.random(50) < 0.6, truth_N, random.integers(0, classes, 50))
    expected_CC = sklearn.confusion_matrix(truth_N, predicted_N, labels=range(classes))
    cells = [(*cell, expected_CC[tuple(cell)]) for cell in np.argwhere(expected_CC)]
    assert [*map(tuple, confusion(truth_N, predicted_N))] == cells
    tally = tally_classes(truth_N, predicted_N, classes)
    assert accuracy(tally) == pytest.approx(sklearn.accuracy_score(truth_N, predicted_N))
    assert matthews(tally) == pytest.approx(sklearn.matthews_corrcoef(truth_N, predicted_N))
    assert tally.macro_f1 == pytest.approx(sklearn.f1_score(truth_N, predicted_N, average="macro"))
    assert tally.micro_f1 == pytest.approx(accuracy(tally))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("positive", [None, "spam", "ham"])
def test_f1_of_the_positive_label_equals_that_of_scikit_learn(seed, positive):
    random = np.random.default_rng(seed)
    truth_N = (random.random(60) < 0.2).astype(int)
    predicted_N = np.where(random.random(60) < 0.7, truth_N, 1 - truth_N)
    task = SingleLabelTask(labels=("ham", "spam"), metric=Metric.F1, positive=positive)
    logits_NC = np.eye(2, dtype=np.float32)[predicted_N]
    score = task.evaluate(Outputs.of(logits_NC), truth_N).score
    wanted = 0 if positive == "ham" else 1
    assert score == pytest.approx(sklearn.f1_score(truth_N, predicted_N, pos_label=wanted))
    assert task.scorer(Outputs.of(logits_NC), truth_N)(np.arange(60)) == score


@pytest.mark.parametrize("seed", range(10))
def test_multi_label_scores_equal_those_of_scikit_learn(seed):
    random = np.random.default_rng(seed)
    truth_NC = random.random((40, 5)) < [0.5, 0.1, 0.02, 0.3, 0]
    predicted_NC = random.random((40, 5)) < [0.5, 0.1, 0.02, 0.3, 0]
    tally = tally_labels(truth_NC, predicted_NC)
    macro = sklearn.f1_score(truth_NC, predicted_NC, average="macro", zero_division=np.nan)
    micro = sklearn.f1_score(truth_NC, predicted_NC, average="micro")
    assert (tally.macro_f1, tally.micro_f1) == pytest.approx((macro, micro))
    precision = sklearn.precision_score(truth_NC, predicted_NC, average=None, zero_division=0)
    recall = sklearn.recall_score(truth_NC, predicted_NC, average=None, zero_division=0)
    np.testing.assert_allclose(tally.precision, precision)
    np.testing.assert_allclose(tally.recall, recall)


@pytest.mark.parametrize("seed", range(10))
def test_correlations_with_ties_equal_those_of_scipy(seed):
    random = np.random.default_rng(seed)
    truth_N = np.round(random.uniform(0, 5, 80), 1)
    value_N = (truth_N + random.normal(0, 1 + seed, 80)) * 10.0 ** (seed - 5)
    if seed % 2:
        value_N = np.round(value_N / np.ptp(value_N), 1)
    assert pearson(value_N, truth_N) == pytest.approx(stats.pearsonr(value_N, truth_N)[0])
    assert spearman(value_N, truth_N) == pytest.approx(stats.spearmanr(value_N, truth_N)[0])


@pytest.mark.parametrize("positive", ["ham", "spam", None])
def test_the_roc_area_of_two_labels_equals_that_of_scikit_learn(positive):
    random = np.random.default_rng(3)
    truth_N = (random.random(90) < 0.2).astype(int)
    logits_NC = np.round(random.normal(size=(90, 2)) + np.eye(2)[truth_N], 1).astype(np.float32)
    task = SingleLabelTask(labels=("ham", "spam"), metric=Metric.ACCURACY, positive=positive)
    wanted, sign = (0, -1) if positive == "ham" else (1, 1)
    score_N = sign * np.subtract(*logits_NC.astype(float).T[::-1])
    found = task.evaluate(Outputs.of(logits_NC), truth_N).scores[Reported.ROC_AUC]
    assert found == pytest.approx(sklearn.roc_auc_score(truth_N == wanted, score_N))
    assert Reported.ROC_AUC not in task.evaluate(Outputs.of(logits_NC), truth_N * 0).scores


@pytest.mark.parametrize("seed", range(5))
def test_roc_areas_with_ties_equal_those_of_scikit_learn(seed):
    random = np.random.default_rng(seed)
    truth_NC = random.random((80, 4)) < [0.5, 0.1, 0.3, 0]
    logits_NC = np.round(random.normal(size=(80, 4)) + truth_NC, 1).astype(np.float32)
    macro = sklearn.roc_auc_score(truth_NC[:, :3], logits_NC[:, :3], average="macro")
    micro = sklearn.roc_auc_score(truth_NC, logits_NC, average="micro")
    task = MultiLabelTask(labels=tuple("abcd"), metric=Metric.MICRO_F1)
    scores = task.evaluate(Outputs.of(logits_NC), truth_NC).scores
    assert scores[Reported.MACRO_ROC_AUC] == pytest.approx(macro)
    assert scores[Reported.MICRO_ROC_AUC] == pytest.approx(micro)
    assert [*scores] == ["micro_f1", "macro_f1", "accuracy", "macro_roc_auc", "micro_roc_auc"]


def test_undefined_or_slow_roc_areas_are_left_out(monkeypatch):
    truth_NC, logits_NC = np.eye(3, dtype=bool), np.eye(3, dtype=np.float32)
    assert [*roc_areas(logits_NC, truth_NC & False)] == []
    assert len([*roc_areas(logits_NC, truth_NC)]) == 2
    monkeypatch.setattr(metrics, "MAX_RANKED", 8)
    assert [*roc_areas(logits_NC, truth_NC)] == []


def test_the_mean_absolute_error_is_on_the_scale_of_the_targets():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    evaluation = task.evaluate(Outputs.of(np.array([[1], [5]], np.float32)), np.array([2.0, 2.5]))
    assert evaluation.scores[Reported.MEAN_ABSOLUTE_ERROR] == pytest.approx(1.75)


def test_the_names_of_metrics_are_those_in_use():
    named = {metric: metric_in_words(metric) for metric in (*Metric, *Reported)}
    assert named["micro_roc_auc"] == "micro-ROC AUC"
    assert named["mean_absolute_error"] == "mean absolute error"
    assert (named["macro_f1"], named["f1"], named["pearson"]) == ("macro-F1", "F1", "Pearson")


def test_an_undefined_score_is_zero():
    constant, line = np.full(4, 2.5), np.arange(4.0)
    for score in (pearson, spearman):
        assert score(constant, line) == score(line, constant) == score(line[:0], line[:0]) == 0
        assert score(line[:1], line[:1]) == 0
    assert matthews(tally_classes(np.array([0, 1, 1]), np.array([1, 1, 1]), 2)) == 0
    empty = tally_classes(np.zeros(0, int), np.zeros(0, int), 2)
    assert matthews(empty) == accuracy(empty) == 0
    nothing = tally_labels(np.zeros((3, 2), bool), np.zeros((3, 2), bool))
    assert nothing.macro_f1 == nothing.micro_f1 == 0


def cases():
    """Yield pairs of true and predicted labels, as indices of LABELS."""
    random = np.random.default_rng(0)
    for share in (0.0, 0.3, 0.9, 1.0):
        truth_N = random.integers(0, 19, 400)
        predicted_N = np.where(random.random(400) < share, truth_N, random.integers(0, 19, 400))
        yield truth_N, predicted_N
    turned_N = np.where(truth_N == 0, 0, (truth_N - 1 ^ 1) + 1)
    yield truth_N, turned_N  # each direction wrong
    yield truth_N, np.where(random.random(400) < 0.5, truth_N, turned_N)
    yield truth_N, np.zeros(400, int)  # all Other
    yield truth_N, np.full(400, 7)  # one relation
    yield random.integers(1, 3, 50), random.integers(0, 19, 50)  # one relation true
    yield random.integers(1, 19, 100), random.integers(1, 19, 100)  # no Other
    yield random.integers(0, 5, 100), random.integers(0, 9, 100)  # relations that are never true
    yield np.array([1]), np.array([1])
    yield np.array([1]), np.array([2])


@pytest.mark.parametrize(("truth_N", "predicted_N"), list(cases()))
def test_the_directional_f1_equals_that_of_the_official_scorer(
    shared_data, tmp_path, truth_N, predicted_N
):
    scorer = shared_data / "semeval2010_task8" / "semeval2010_task8_scorer-v1.2.pl"
    for name, labels_N in (("truth", truth_N), ("predicted", predicted_N)):
        lines = (f"{row}\t{LABELS[label]}\n" for row, label in enumerate(labels_N, start=1))
        (tmp_path / name).write_text("".join(lines))
    out = subprocess.run(
        ["perl", scorer, tmp_path / "predicted", tmp_path / "truth"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (official,) = re.findall(r"official score is .* macro-averaged F1 = ([0-9.]+)%", out)
    score = 100 * directional_f1(tally_classes(truth_N, predicted_N, 19), LABELS)
    assert f"{score:.2f}" == official


def test_a_wrong_direction_counts_against_precision_and_recall():
    labels = ("Other", "R-S(e1,e2)", "R-S(e2,e1)")
    truth_N, predicted_N = np.array([1, 1, 2, 0]), np.array([1, 2, 2, 0])
    assert directional_f1(tally_classes(truth_N, predicted_N, 3), labels) == pytest.approx(2 / 3)
    assert directional_f1(tally_classes(truth_N * 0, predicted_N * 0, 3), labels) == 0


@pytest.mark.parametrize(
    ("kind", "labels", "names"),
    [
        ("single_label", ("a", "b"), "accuracy macro_f1 matthews f1"),
        ("single_label", ("a", "b", "c"), "accuracy macro_f1 matthews"),
        ("single_label", LABELS, "directional_f1 accuracy macro_f1 matthews"),
        ("single_label", DIRECTED, "directional_f1 accuracy macro_f1 matthews"),
        ("single_label", ("a", "b", *DIRECTED), "accuracy macro_f1 matthews"),
        ("single_label", ("a(e1,e2)", "b"), "accuracy macro_f1 matthews f1"),
        ("multi_label", ("a", "b"), "micro_f1 macro_f1 accuracy"),
        ("regression", ("score",), "pearson spearman"),
    ],
)
def test_the_first_applicable_metric_is_the_default(kind, labels, names):
    task = task_type(kind)
    assert list(task.applicable_metrics(labels)) == names.split()
    assert TaskSettings(kind=kind).metric_for(labels) == names.split()[0]
    for metric in Metric:
        if metric in names.split():
            task.check_metric(metric, labels)
        else:
            with pytest.raises(ConfigError, match=f"task.metric {metric} does not apply") as caught:
                task.check_metric(metric, labels)
            assert caught.value.hint == f"set it to one of {names.replace(' ', ', ')}"
