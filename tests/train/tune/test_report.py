from pathlib import Path

import pytest

from pipework.errors import RunFolderError
from pipework.tasks.kinds import Metric
from pipework.train.tune.report import (
    RESULT,
    FinalConfig,
    SplitComparison,
    TuneResult,
    describe_trial,
    html,
    read_result,
    summary,
)
from pipework.train.tune.trials import TrialRecord, TrialState

OUT = Path("runs/tuned")
VALUES = {"train.learning_rate": "0.000123456", "train.batch_size": "8"}
SCORES = "mean macro-F1 0.8600, unchanged config 0.8100, difference +0.0500"


def comparison(low, high, split="dev"):
    return SplitComparison(
        split=split, rows=1200, unchanged=(0.8, 0.82), best=(0.85, 0.87), low=low, high=high
    )


def final(number, *scores):
    name = "config" if number is None else f"trial-{number:04d}"
    runs = tuple(f"final/{name}/seed-{seed}" for seed in range(1, 1 + len(scores)))
    return FinalConfig(trial=number, runs=runs, scores=scores)


def trial(number, state=TrialState.COMPLETE, score=0.5, **fields):
    fields = {"values": VALUES, "share": 1.0, "reason": "", **fields}
    return TrialRecord(number=number, state=state, score=score, **fields)


TRIALS = (
    trial(0),
    trial(1, score=0.9),
    trial(2, TrialState.PRUNED, 0.1, share=0.25),
    trial(3, TrialState.FAIL, None, share=0.0, reason="the loss is <nan>"),
)


@pytest.fixture
def result():
    return TuneResult(
        metric=Metric.MACRO_F1,
        trials=TRIALS,
        unchanged={"train.learning_rate": "0.001", "train.batch_size": "4"},
        finals=(final(None, 0.8, 0.82), final(0, 0.79, 0.8), final(1, 0.85, 0.87)),
        standard_error=0.02,
        comparisons=(comparison(0.01, 0.09), comparison(-0.01, 0.11, "test")),
    )


def test_the_lines_have_both_scores_their_difference_and_the_decision(result):
    values = "train.learning_rate = 0.0001235, train.batch_size = 8"
    counts = "2 seeds, 1,200 rows"
    assert list(summary(OUT, result)) == [
        "4 trials (2 complete, 1 pruned, 1 failed); final runs of 3 configs with 2 seeds each",
        f"dev: {SCORES} (95 % interval +0.0100 to +0.0900), {counts}",
        f"test: {SCORES} (95 % interval -0.0100 to +0.1100), {counts}",
        f"use trial 1 (+0.0500 on dev, standard error 0.0200): {values}",
        "report: runs/tuned/report.html",
        "next: pipe export runs/tuned/final/trial-0001/seed-1 --to auto",
    ]


def test_the_unchanged_config_is_kept_unless_the_gain_is_more_than_one_standard_error(
    result, small_space
):
    noisy = result.model_copy(update={"standard_error": 0.0501})
    small = "not more than one standard error (+0.0500 on dev, standard error 0.0501)"
    assert list(summary(OUT, noisy))[-3:] == [
        f"keep the unchanged config: the gain of trial 1 is {small}",
        "report: runs/tuned/report.html",
        "next: pipe export runs/tuned/final/config/seed-1 --to auto",
    ]
    assert '<p class="verdict undecided"><b>Keep the unchanged' in html(OUT, small_space(), noisy)


def test_a_search_whose_trials_have_the_values_of_the_config_keeps_it(result):
    same = result.model_copy(update={"finals": result.finals[:1], "comparisons": ()})
    assert list(summary(OUT, same))[1] == (
        "keep the unchanged config: all complete trials have its values"
    )


def test_each_end_of_a_trial_has_its_line():
    assert [describe_trial(trial) for trial in TRIALS[1:]] == [
        "trial 1: 0.9000 with train.learning_rate = 0.0001235, train.batch_size = 8",
        "trial 2: 0.1000, pruned after 25% of its steps",
        "trial 3 failed: the loss is <nan>",
    ]


def test_the_page_has_the_verdict_the_final_runs_and_all_trials(result, small_space):
    page = html(OUT, small_space(), result)
    assert '<p class="verdict better"><b>Use trial 1' in page
    assert "the loss is &lt;nan&gt;" in page
    assert page.count("<figure>") == 3  # all trials, and each setting
    assert "Range: 0.0001 to 0.01, logarithmic. Each point is a trial." in page
    scores = "<td>0.8600</td><td>+0.0500</td><td>0.8500, 0.8700</td>"
    assert f"<td>trial 1</td>{scores}<td>0.0001235</td><td>8</td>" in page
    assert "<td>unchanged config</td><td>0.8100</td><td>+0.0000</td>" in page


def test_the_result_is_read_again(result, tmp_path):
    assert read_result(tmp_path) is None
    (tmp_path / RESULT).write_text(result.model_dump_json())
    assert read_result(tmp_path) == result
    (tmp_path / RESULT).write_text("{}")
    with pytest.raises(RunFolderError, match=r"result\.json was not written by this version"):
        read_result(tmp_path)
