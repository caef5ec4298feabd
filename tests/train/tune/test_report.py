from pathlib import Path

import pytest

from pipework.errors import RunFolderError
from pipework.tasks.kinds import Metric
from pipework.train.tune.report import (
    RESULT,
    SplitComparison,
    TuneResult,
    describe_trial,
    html,
    read_result,
    summary,
)
from pipework.train.tune.trials import TrialRecord, TrialState

OUT = Path("runs/tuned")
WIDE = "-0.0100 to +0.1100"
SCORES = "mean macro-F1 0.8600, unchanged config 0.8100, 2 seeds, 1,200 rows"
VALUES = {"train.learning_rate": "0.000123456", "train.batch_size": "8"}


def comparison(low, high, split="dev"):
    return SplitComparison(
        split=split, rows=1200, unchanged=(0.8, 0.82), winner=(0.85, 0.87), low=low, high=high
    )


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
    runs = {name: (f"{name}/seed-1", f"{name}/seed-2") for name in ("config", "winner")}
    return TuneResult(
        metric=Metric.MACRO_F1,
        trials=TRIALS,
        winner=1,
        unchanged={"train.learning_rate": "0.001", "train.batch_size": "4"},
        importances={"train.learning_rate": 0.7, "train.batch_size": 0.3},
        runs=runs,
        comparisons=(comparison(0.01, 0.09), comparison(-0.01, 0.11, "test")),
    )


def test_the_lines_state_what_chose_the_winner_and_whether_it_is_better(result):
    assert list(summary(OUT, result)) == [
        "4 trials (2 complete, 1 pruned, 1 failed): trial 1 was the best on dev",
        "winner: train.learning_rate = 0.0001235, train.batch_size = 8",
        f"dev: the winner is better by 0.0500 (95 % interval +0.0100 to +0.0900): {SCORES}",
        f"test: the winner is not better, difference +0.0500 (95 % interval {WIDE}): {SCORES}",
        "report: runs/tuned/report.html",
        "next: pipe export runs/tuned/winner/seed-1 --to auto",
    ]


def test_a_worse_winner_is_reported():
    assert "dev: the winner is worse by" in comparison(-0.09, -0.01).describe(Metric.ACCURACY)


def test_the_unchanged_config_may_win(result):
    runs = dict.fromkeys(("config", "winner"), ("config/seed-1",))
    same = SplitComparison(split="dev", rows=9, unchanged=(0.5,), winner=(0.5,), low=0, high=0)
    won = result.model_copy(update={"runs": runs, "comparisons": (same,), "winner": 0})
    assert list(summary(OUT, won))[1:3] == [
        "not better: no trial scored higher on dev than the unchanged config",
        "dev: mean macro-F1 0.5000, 1 seed, 9 rows",
    ]


def test_each_end_of_a_trial_has_its_line():
    assert [describe_trial(trial) for trial in TRIALS[1:]] == [
        "trial 1: 0.9000 with train.learning_rate = 0.0001235, train.batch_size = 8",
        "trial 2: 0.1000, pruned after 25% of its steps",
        "trial 3 failed: the loss is <nan>",
    ]


def test_the_page_has_the_verdict_the_settings_and_all_trials(result, small_space):
    page = html(OUT, small_space(), result)
    assert '<p class="verdict undecided">' in page  # test decides
    assert "the loss is &lt;nan&gt;" in page
    assert page.count("<figure>") == 3  # all trials, and each setting
    cells = "<td>train.learning_rate</td><td>0.0001 to 0.01, logarithmic</td><td>0.001</td>"
    assert f"{cells}<td>0.0001235</td><td>70%</td>" in page
    assert "<td>winner/seed-2</td><td>0.8700</td><td>0.8700</td>" in page
    assert "<td>config/seed-1</td><td>0.8000</td><td>0.8000</td>" in page


def test_the_page_of_a_better_winner_is_marked(result, small_space):
    better = result.model_copy(update={"comparisons": (comparison(0.01, 0.09),)})
    assert '<p class="verdict better">' in html(OUT, small_space(), better)


def test_the_result_is_read_again(result, tmp_path):
    assert read_result(tmp_path) is None
    (tmp_path / RESULT).write_text(result.model_dump_json())
    assert read_result(tmp_path) == result
    (tmp_path / RESULT).write_text("{}")
    with pytest.raises(RunFolderError, match=r"result\.json was not written by this version"):
        read_result(tmp_path)
