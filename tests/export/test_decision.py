"""A model that gives no label where its score is too low."""

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import chi2

from pipework.data.examples import Example
from pipework.data.splits import split_source
from pipework.errors import CheckFailedError, ConfigError
from pipework.export.config import DecisionSettings, ExportSettings
from pipework.export.decision import conformal_width, decide
from pipework.export.inference import evaluate_run, predict_run
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.manifest import LockedRun, SplitMetrics, read_manifest, write_manifest
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.predictions import AbstainedLabel, RegressionInterval
from pipework.tasks.regression import RegressionTask
from pipework.tasks.single_label import SingleLabelTask

TASK = SingleLabelTask(labels=("x", "y", "z"), metric=Metric.ACCURACY)


def decided(run, noting, **settings):
    with LockedRun.open(run) as locked:
        decide(locked, DecisionSettings(**settings), noting)
        locked.record_engines(())
        return locked.manifest


@pytest.fixture
def rows_file(run, tmp_path):
    """A function that writes predictions of the run as labels, every n-th of them wrong."""

    def write(rows, wrong_every):
        texts = [f"report number {number} of the day" for number in range(rows)]
        examples = [Example(text=text) for text in texts]
        labels = [prediction.label for _, prediction in predict_run(run, examples)]
        names = read_manifest(run).task.labels
        for row in range(0, rows, wrong_every):
            labels[row] = next(name for name in names if name != labels[row])
        reading = split_source(run, read_manifest(run), "dev").read_options()
        path = tmp_path / "rows.jsonl"
        columns = (reading.text, reading.label)
        lines = (dict(zip(columns, row, strict=True)) for row in zip(texts, labels, strict=True))
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path

    return write


def test_the_lowest_score_is_chosen_on_labelled_rows(run, rows_file, noting):
    manifest = decided(run, noting, max_error=0.1, rows=rows_file(400, 50))
    assert manifest.task.min_scores == (0.0,)
    assert (manifest.decision.rows, manifest.decision.answered) == (400, 400)
    line = "rows.jsonl: answered 400 of 400 rows (100.0%), 2.00% of these wrongly; at most 10.00%"
    assert noting.lines[-1] == f"decision: {line} with 95 % confidence"
    assert read_manifest(run).decision == manifest.decision
    each = decided(run, noting, max_error=0.1, per_label=True, rows=rows_file(400, 50))
    assert len(each.task.min_scores) == len(each.task.labels)
    assert "decision: never given" in noting.lines[-2]
    again = decided(run, noting, min_score=0)
    assert (again.task.min_scores, again.decision) == ((), None)


def test_a_limit_that_the_rows_cannot_show_is_refused(run, rows_file, noting):
    before = read_manifest(run)
    with pytest.raises(CheckFailedError, match="60 rows cannot show with 95% confidence") as caught:
        decided(run, noting, max_error=0.01, rows=rows_file(60, 1000))
    assert caught.value.hint.startswith("about ")
    with pytest.raises(CheckFailedError, match=r"at most 1\.00% of the given labels") as caught:
        decided(run, noting, max_error=0.01, rows=rows_file(400, 4))
    assert "are wrong: raise decision.max_error" in caught.value.hint
    assert read_manifest(run) == before


@pytest.fixture
def labelled_rows(multi_run, tmp_path):
    """A copy of the multi-label run, and a file of rows with its own labels, some of them wrong."""
    run = tmp_path / "multi"
    shutil.copytree(multi_run, run)
    generator = np.random.default_rng(0)
    words = [f"word{number} rain {number % 7}" for number in range(600)]
    examples = [Example(text=word) for word in words]
    lines = []
    for word, (_, found) in zip(words, predict_run(run, examples), strict=True):
        chance = {"a": 0.5, "b": 0.5, "c": 0.02}
        labels = [name for name in found.scores if generator.random() < chance[name]]
        lines.append(f"{word}\t{'|'.join(sorted(labels))}\n")
    path = tmp_path / "rows.tsv"
    path.write_text("".join(lines))
    return run, path


def test_a_recall_gives_each_label_a_threshold(labelled_rows, noting):
    run, path = labelled_rows
    with pytest.raises(CheckFailedError, match=r"cannot show a recall of 99\.90%") as caught:
        decided(run, noting, min_recall=0.999, rows=path)
    assert caught.value.hint == "each needs 4,093 rows that have it: lower decision.min_recall"
    most = decided(run, noting, min_recall=0.9, rows=path)
    line = "decision: too few rows or too many errors, threshold kept for c"
    assert noting.lines[-2] == line
    assert most.task.min_scores[2] == 0.6
    assert most.decision.not_shown == ("c",)
    assert noting.lines[-1].endswith("95 % confidence, not shown for c")
    manifest = decided(run, noting, min_recall=0.6, rows=path)
    found = manifest.decision
    assert found.right / found.true >= 0.6
    assert found.predicted < 3 * 600
    scores = manifest.task.min_scores
    assert [*manifest.task.label_thresholds.values()] == [*scores]
    assert (found.source, found.rows, found.min_recall) == ("rows.tsv", 600, 0.6)
    assert "recall of each label at least 60.00% with 95 % confidence" in noting.lines[-1]
    again = decided(run, noting, min_score=0)
    assert again.task.label_thresholds == {"a": 0.4, "b": 0.5, "c": 0.6}
    assert again.decision is None


def test_a_precision_gives_each_label_a_threshold(labelled_rows, noting):
    run, path = labelled_rows
    found = decided(run, noting, min_precision=0.4, rows=path)
    assert noting.lines[-2].endswith("too many errors, threshold kept for c")
    assert found.task.min_scores[2] == 0.6
    assert found.decision.not_shown == ("c",)
    assert found.decision.right / found.decision.predicted >= 0.4
    with pytest.raises(CheckFailedError, match=r"cannot show a precision of 99\.00%") as caught:
        decided(run, noting, min_precision=0.99, rows=path)
    hint = "each needs about 480 rows for which it is predicted, and more with errors"
    assert caught.value.hint == f"{hint}: lower decision.min_precision"


def test_chosen_thresholds_change_neither_the_parity_nor_the_scores_of_the_training(labelled_rows):
    run, path = labelled_rows
    manifest = read_manifest(run)
    before = evaluate_run(run, None, "dev", None, NullProgress())
    metrics = SplitMetrics(rows=before.rows, scores=before.scores)
    data = manifest.data.model_copy(update={"metrics": {"dev": metrics}})
    write_manifest(run, manifest.model_copy(update={"data": data}))
    settings = ExportSettings(speed_s=0, decision=DecisionSettings(min_recall=0.6, rows=path))
    (record,) = export(run, NullProgress(), settings=settings)
    assert record.parity.flips_outside == 0
    found = evaluate_run(run, None, "dev", record.name, NullProgress())
    assert found.score != before.score
    assert read_manifest(run).task.limits.startswith("thresholds chosen by an export")


def test_texts_without_a_label_get_the_fallback(run, noting):
    task = decided(run, noting, min_score=0.9, fallback_label="other").task
    assert task.limits == "`other` below a score of 0.9"
    outputs = Outputs.of(np.log(np.array([[97, 2, 1], [1, 5, 4]], np.float32)))
    sure, unsure = task.decode(outputs)
    assert sure.label == task.labels[0]
    assert (unsure.label, unsure.abstained, unsure.score) == ("other", True, pytest.approx(0.5))
    assert unsure.text_fields() == ("other", "0.5000")
    assert task.columns(outputs)["predicted_label"].values == [task.labels[0], "other"]
    assert decided(run, noting, min_score=0.9).task.fallback_label is None
    assert decided(run, noting, min_score=0).task.fallback_label is None


def test_a_fallback_label_needs_one_label_for_each_text(multi_run, noting):
    with pytest.raises(ConfigError, match="do not apply to a multi_label model"):
        decided(multi_run, noting, min_score=0.9, fallback_label="other")


def test_an_engine_is_proven_with_the_decision(proven, noting):
    scores = [
        prediction.score
        for _, prediction in predict_run(proven, split_source_rows(proven), "onnx-fp32")
    ]
    settings = ExportSettings(
        speed_s=0, decision=DecisionSettings(min_score=float(np.median(scores)))
    )
    before = read_manifest(proven)
    with pytest.raises(ConfigError, match=r"decision\.\* needs engines that are proven with it"):
        export(proven, noting, settings=settings.model_copy(update={"rebuild": False}))
    with pytest.raises(KeyboardInterrupt):
        export(proven, noting, settings=settings, builder=Mock(side_effect=KeyboardInterrupt))
    assert read_manifest(proven) == before
    (record,) = export(proven, NullProgress(), settings=settings)
    assert record.parity.flips_outside == 0
    predicted = [
        prediction for _, prediction in predict_run(proven, split_source_rows(proven), record.name)
    ]
    abstained = [prediction for prediction in predicted if isinstance(prediction, AbstainedLabel)]
    assert len(predicted) * 0.4 < len(abstained) < len(predicted) * 0.6
    found = evaluate_run(proven, None, "dev", record.name, NullProgress()).decided
    assert found.answered == len(predicted) - len(abstained)


def split_source_rows(run):
    rows = split_source(run, read_manifest(run), "dev").rows()
    return [Example(text=row.text) for row in rows]


def test_texts_with_low_scores_get_no_label():
    task = TASK.model_copy(update={"min_scores": (0.6,)})
    outputs = Outputs.of(np.log(np.array([[7, 2, 1], [1, 5, 4], [1, 2, 7]], np.float32) / 10))
    labels = [prediction.label for prediction in task.decode(outputs)]
    assert labels == ["x", None, "z"]
    assert task.columns(outputs)["predicted_label"].values == labels
    assert task.predicted_labels(outputs.values).tolist() == [
        [True, False, False],
        [False, False, False],
        [False, False, True],
    ]
    assert task.abstained(outputs) == 1
    (second,) = task.decode(outputs.part(1, 2), top_k=1)
    assert (second.abstained, second.scores) == (True, {"y": pytest.approx(0.5)})
    each = TASK.model_copy(update={"min_scores": (0.8, 0.4, 0.4)})
    assert [prediction.label for prediction in each.decode(outputs)] == [None, "y", "z"]
    answered = each.evaluate(outputs, np.array([0, 1, 0])).decided
    assert (answered.answered, answered.wrong) == (2, 1)


def test_the_margin_of_a_lost_label_is_the_distance_from_the_lowest_score():
    task = TASK.model_copy(update={"min_scores": (0.6,)})
    expected_XC = np.log(np.array([[7, 2, 1], [7, 2, 1], [7, 2, 1]], np.float32))
    found_XC = np.log(np.array([[5.5, 3.5, 1], [2, 7, 1], [7, 2, 1]], np.float32))
    flipped_XC = task.predicted_labels(expected_XC) != task.predicted_labels(found_XC)
    assert task.margins(expected_XC, found_XC, flipped_XC) == pytest.approx(
        [np.log(7 / 3) - np.log(6 / 4), np.log(7 / 2), 0], rel=1e-5
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"max_error": 0.1, "min_score": 0.5},
        {"min_score": 0.5, "per_label": True},
        {"min_precision": 0.5, "min_recall": 0.5},
        {"fallback_label": "other"},
        {"min_score": 0.5, "fallback_label": " "},
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings):
    with pytest.raises(ValueError, match="decision"):
        DecisionSettings(**settings)


@pytest.mark.parametrize(("rows", "coverage"), [(30, 0.9), (200, 0.8), (1000, 0.95)])
def test_the_interval_holds_the_promised_share_of_new_values(rows, coverage):
    generator = np.random.default_rng(0)
    inside = [
        chi2(1).cdf(conformal_width(np.abs(generator.normal(size=rows)), coverage) ** 2)
        for _ in range(2000)
    ]
    assert coverage - 0.003 < np.mean(inside) < coverage + 1 / rows + 0.003


def test_an_interval_needs_enough_rows():
    with pytest.raises(CheckFailedError, match="8 rows cannot give an interval for 90") as caught:
        conformal_width(np.arange(8.0), 0.9)
    assert caught.value.hint.startswith("at least 9 rows")
    assert conformal_width(np.arange(9.0), 0.9) == 8


def test_a_regression_answers_with_its_interval():
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON, interval=0.5)
    outputs = Outputs.of(np.array([[2.0], [-1.0]], np.float32))
    assert task.decode(outputs) == [
        RegressionInterval(score=2, low=1.5, high=2.5),
        RegressionInterval(score=-1, low=-1.5, high=-0.5),
    ]
    columns = {name: column.values for name, column in task.columns(outputs).items()}
    assert columns["predicted_low"] == [1.5, -1.5]
    decided = task.evaluate(outputs, np.array([2.4, 3], np.float32)).decided
    assert str(decided) == "interval +-0.5: 50.0% of 2 true values are inside"


def test_the_interval_of_a_run_is_chosen_on_labelled_rows(regression_run, tmp_path, noting):
    run = tmp_path / "run"
    shutil.copytree(regression_run, run)
    reading = split_source(run, read_manifest(run), "dev").read_options()
    values = [
        {reading.text: f"report number {number}", reading.label: number % 7} for number in range(40)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    manifest = decided(run, noting, coverage=0.9, rows=path)
    assert manifest.decision.width == manifest.task.interval > 0
    evaluation = evaluate_run(run, path, "dev", None, NullProgress())
    assert evaluation.decided.covered / 40 >= 0.9
    with pytest.raises(ConfigError, match="do not apply to a regression model"):
        decided(run, noting, min_score=0.5)
