import json

import optuna
import pytest

from pipework.errors import CheckFailedError
from pipework.tasks.evaluation import Evaluation
from pipework.tasks.kinds import Metric
from pipework.train.tune.search_space import ChoiceRange
from pipework.train.tune.trials import JOURNAL, HalvingPruner, TrialJournal, TrialState

RUNNING = optuna.trial.TrialState.RUNNING


def scored(score):
    return Evaluation(
        rows=1, metric=Metric.ACCURACY, scores={Metric.ACCURACY: score}, classes=(), confusion=()
    )


@pytest.fixture
def journal(small_space, tmp_path):
    """A function that opens the journal of one folder, as each process of a search does."""
    space = small_space(trials=3)
    return lambda: TrialJournal(tmp_path, space)


def finish(journal, score):
    with journal().claim() as trial:
        trial.should_stop(1.0, scored(score))
        trial.finish(score)


def test_processes_claim_different_trials_and_no_more_than_configured(journal):
    with journal().claim() as one, journal().claim() as two, journal().claim() as three:
        assert {one.number, two.number, three.number} == {0, 1, 2}
        with journal().claim() as four:
            assert four is None


def test_the_first_trial_has_the_values_of_the_config_if_they_are_in_the_ranges(
    small_space, tmp_path
):
    space = small_space("train.batch_size=5")  # is not one of its choices
    with TrialJournal(tmp_path, space).claim() as trial:
        assert trial.values["train.learning_rate"] == "0.001"
        assert trial.values["train.batch_size"] in ("4", "8")


def test_a_trial_that_has_lost_its_process_is_taken_over_with_its_values(journal):
    with journal().claim() as first:
        pass  # the lock is released without a result, as by a killed process
    with journal().claim() as second, journal().claim() as other:
        assert (second.number, second.values) == (first.number, first.values)
        assert other.number == 1


def test_a_trial_without_values_is_taken_over(journal):
    killed = journal()
    killed.study.ask()  # killed before its values were chosen
    with journal().claim() as trial:
        assert trial.number == 0
        assert set(trial.values) == {"train.learning_rate", "train.batch_size"}


def test_a_process_that_is_killed_while_it_chooses_values_does_not_change_them(
    small_space, tmp_path, monkeypatch
):
    values = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        journal = TrialJournal(tmp_path / name, small_space())
        finish(lambda journal=journal: journal, 0.5)
        if name == "killed":
            with monkeypatch.context() as patch:
                patch.setattr(ChoiceRange, "suggest", lambda *_: 1 / 0)  # the first value is chosen
                with pytest.raises(ZeroDivisionError), journal.claim():
                    pass
        with TrialJournal(tmp_path / name, small_space()).claim() as trial:
            assert trial.number == 1
            values.append(trial.values)
    assert values[0] == values[1]


def test_finished_trials_are_not_claimed_again(journal):
    for score in (0.5, 0.7, 0.7):
        finish(journal, score)
    with journal().claim() as trial:
        assert trial is None
    assert [trial.score for trial in journal().finished()] == [0.5, 0.7, 0.7]
    assert [trial.number for trial in journal().ranked()] == [1, 2, 0]


def test_an_evaluation_that_a_resumed_trial_repeats_is_recorded_once(journal):
    with journal().claim() as trial:
        trial.should_stop(0.5, scored(0.6))
    with journal().claim() as trial:
        trial.should_stop(0.5, scored(0.6))
        trial.should_stop(1.0, scored(0.4))
        trial.finish(0.6)
    (finished,) = journal().finished()
    assert (finished.score, finished.share) == (0.6, 1.0)


def test_a_failed_trial_is_not_ranked(journal):
    with journal().claim() as trial:
        trial.fail("the loss is nan")
    with pytest.raises(CheckFailedError, match="all 1 trials failed, the first because: the loss"):
        journal().ranked()
    finish(journal, 0.1)
    assert [trial.number for trial in journal().ranked()] == [1]
    assert journal().finished()[0].state is TrialState.FAIL


def test_an_incomplete_line_of_the_journal_is_dropped(journal, tmp_path):
    finish(journal, 0.5)
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":')  # the disk was full
    finish(journal, 0.6)
    assert [trial.score for trial in journal().finished()] == [0.5, 0.6]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def others(*curves):
    """A study with finished trials of these scores by thousandths of their steps."""
    study = optuna.create_study(direction="maximize", pruner=HalvingPruner())
    for curve in curves:
        trial = study.ask()
        for at, score in curve.items():
            trial.report(score, at)
        study.tell(trial, max(curve.values()))
    return study


def pruned(study, curve):
    trial = study.ask()
    for at, score in curve.items():
        trial.report(score, at)
    return trial.should_prune()


FOUR = [{260: score, 520: 0.9, 1000: 0.9} for score in (0.4, 0.5, 0.6, 0.7)]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ({300: 0.54}, True),  # the others at their first report from a quarter on: 0.55
        ({300: 0.56}, False),
        ({100: 0.56, 300: 0.1}, False),  # the best score counts
        ({249: 0.1}, False),
        ({300: 0.56, 400: 0.1}, False),  # between two rungs
        ({300: 0.56, 501: 0.8}, True),
        ({300: 0.56, 501: 0.9}, False),
        ({600: 0.8}, True),  # passes both rungs at once
    ],
)
def test_the_worse_half_of_the_trials_is_pruned_at_each_rung(curve, expected):
    assert pruned(others(*FOUR), curve) is expected


def test_a_trial_is_compared_with_at_least_four_others():
    assert not pruned(others(*FOUR[:3]), {300: 0.1})


def test_a_pruned_trial_counts_at_the_rungs_that_it_has_reached():
    ended = [{300: 0.2}, {300: 0.3}, {300: 0.2}]
    study = others({300: 0.4, 1000: 0.8}, {300: 0.5, 1000: 0.9}, *ended)
    assert not pruned(study, {300: 0.31})
    assert pruned(study, {300: 0.29})
    assert not pruned(study, {300: 0.31, 900: 0.5})  # only two have reached a half


def test_a_trial_that_is_resumed_at_a_rung_is_still_pruned(small_space, tmp_path):
    journal = TrialJournal(tmp_path, small_space(trials=5))
    for score in (0.4, 0.5, 0.6, 0.7):
        with journal.claim() as trial:
            trial.should_stop(0.3, scored(score))
            trial.finish(score)
    for _ in range(2):  # the first process is killed before it records the end of the trial
        with journal.claim() as trial:
            assert trial.number == 4
            assert trial.should_stop(0.3, scored(0.1))
