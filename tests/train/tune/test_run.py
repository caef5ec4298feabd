import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from pipework.errors import ConfigError, DataError, RunFolderError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.train.tune.report import read_result
from pipework.train.tune.run import tune
from pipework.train.tune.search_space import SearchSpace
from pipework.train.tune.trials import JOURNAL, TrialJournal, TrialState
from tests.commands import ForkedPipe, pipe
from tests.repetitions import repeated


def words_of(search, out, *overrides, **options):
    """The words of `pipe tune`."""
    config, settings = search(*overrides, **options)
    return ["tune", config, "--out", out, *(word for s in settings for word in ("--set", s))]


def weights(run):
    return read_manifest(run).model.checkpoint


def test_a_search_ends_with_run_folders_a_result_and_a_report(search, tmp_path):
    out = tmp_path / "out"
    slow = ("train.learning_rate=1e-6", "train.max_steps=40", "train.eval_every=20")
    done = pipe(*words_of(search, out, *slow, seeds=2))
    assert done.returncode == 0, done.stderr
    first, *comparisons, verdict, report, following = done.stdout.splitlines()
    assert first == (
        "3 trials (3 complete, 0 pruned, 0 failed); final runs of 4 configs with 2 seeds each"
    )
    assert [line.partition(":")[0] for line in comparisons] == ["dev", "test"]
    assert "2 seeds" in comparisons[1]
    assert verdict.startswith("use trial ")
    assert report == f"report: {out}/report.html"
    run = following.removeprefix("next: pipe export ").removesuffix(" --to auto")
    assert f"/final/trial-{verdict.split()[2]:0>4}/seed-" in run
    assert pipe("show", run).returncode == 0
    assert "What mattered" in (out / "report.html").read_text()
    result = read_result(out)
    for comparison in result.comparisons:
        for config, scores in (
            (result.finals[0], comparison.unchanged),
            (result.best, comparison.best),
        ):
            metrics = [read_manifest(out / run).data.metrics for run in config.runs]
            assert scores == pytest.approx(
                [score[comparison.split].scores[result.metric] for score in metrics]
            )


@pytest.fixture(scope="module")
def finished(search_in, tmp_path_factory):
    """A finished search: its command, folder and output. Tests may continue it."""
    folder = tmp_path_factory.mktemp("finished")
    words = words_of(partial(search_in, folder), folder / "out")
    return words, folder / "out", pipe(*words).stdout


def test_a_finished_trial_keeps_its_logs_and_no_weights_and_never_sees_test(finished):
    trials = sorted((finished[1] / "trials").iterdir())
    assert [trial.name for trial in trials] == ["0000", "0001", "0002"]
    for trial in trials:
        names = {path.name.partition(".")[0] for path in trial.iterdir()}
        assert names == {"config", "log", "train", "events"}
        assert "test" not in (trial / "log.jsonl").read_text()


def test_the_same_command_prints_the_result_again(finished):
    words, _, stdout = finished
    again = pipe(*words)
    assert again.stdout == stdout
    assert "training" not in again.stderr


def test_a_search_that_was_killed_at_its_end_deletes_checkpoints_and_compares_again(finished):
    words, out, stdout = finished
    left = (
        out / "trials" / "0002" / "state"
    )  # killed between the result of a trial and its deletion
    left.mkdir()
    (out / "result.json").unlink()
    assert pipe(*words).stdout == stdout
    assert not left.exists()


def until(process, condition, timeout_s=120):
    """Wait until a condition is true or the process has ended."""
    end = time.monotonic() + timeout_s
    while process.poll() is None and not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def journal_lines(out):
    path = out / JOURNAL
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_search_ends_with_the_result_of_an_uninterrupted_one(search, tmp_path, kills):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert pipe(*words_of(search, whole, trials=3)).returncode == 0
    moments = random.Random(kills)
    for _ in range(kills):
        with ForkedPipe(*words_of(search, out, trials=3)) as process:
            wanted = journal_lines(out) + moments.randrange(1, 14)
            until(process, lambda wanted=wanted: journal_lines(out) >= wanted)
            time.sleep(moments.random() / 10)
            process.kill()
            process.wait()
    done = pipe(*words_of(search, out, trials=3))
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(read_result(out).trials, read_result(whole).trials, strict=True):
        assert ours == theirs
    assert read_result(out) == read_result(whole)
    for final in read_result(out).finals:
        for run in final.runs:
            assert weights(out / run) == weights(whole / run)


def claims(out):
    """The lines of the journal by which a process has claimed a trial."""
    path = out / JOURNAL
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if '"values":{"train' in line]


def test_two_commands_share_the_trials_and_the_final_runs(search, tmp_path):
    out = tmp_path / "out"
    words = words_of(search, out, trials=5)
    with ForkedPipe(*words) as one, ForkedPipe(*words) as two:
        results = [one.finish(), two.finish()]
    assert [done.returncode for done in results] == [0, 0], results
    assert results[0].stdout == results[1].stdout
    claimed = claims(out)
    assert len(claimed) == 5
    assert [trial.number for trial in read_result(out).trials] == list(range(5))
    workers = {line.partition('"worker_id":"')[2][:36] for line in claimed}
    assert len(workers) == 2


@pytest.mark.parametrize("moment", repeated(["0001/state", "0001/config.toml"]))
def test_ctrl_c_is_one_line_and_the_same_command_continues(search, tmp_path, moment):
    out = tmp_path / "out"
    words = words_of(search, out)
    with ForkedPipe(*words) as process:
        until(process, (out / "trials" / moment).exists)
        process.send_signal(signal.SIGINT)
        done = process.finish()
    assert done.returncode == 130, done.stderr
    assert "error: stopped by a signal after 1 of 3 trials" in done.stderr
    assert "hint: run the same command to continue" in done.stderr
    assert "Traceback" not in done.stderr
    assert pipe(*words).returncode == 0
    assert len(read_result(out).trials) == 3


@pytest.fixture
def started(search, tmp_path):
    """A function that starts a search in a folder, which is then as if it had been killed."""
    space = SearchSpace.load(*search())
    out = tmp_path / "out"
    (out / "locks").mkdir(parents=True)
    from pipework.train.prepare import prepare  # noqa: PLC0415
    from pipework.train.tune.run import _open_journal  # noqa: PLC0415

    _open_journal(space, out, prepare(space.config, NullProgress()).fingerprint)
    return out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.clip=2", r"out was started with train\.clip = 1\.0, found 2\.0"),
        ("tune.trials=9", r"out was started with tune\.trials = 3, found 9"),
        (
            "tune.train.batch_size=[4, 16]",
            r"out was started with tune\.train = .*\[4, 8\].*, found .*\[4, 16\]",
        ),
    ],
)
def test_a_folder_is_not_continued_with_other_settings(search, started, override, message):
    space = SearchSpace.load(*search(override))
    with pytest.raises(ConfigError, match=message) as caught:
        tune(space, started, 1, NullProgress())
    assert "\n" not in str(caught.value)


def test_a_folder_is_not_continued_with_other_data(search, started, tmp_path):
    space = SearchSpace.load(*search())
    with (tmp_path / "train.tsv").open("a") as rows:
        rows.write("another good thing\t1\n")
    with pytest.raises(DataError, match=r"the train file changed since .*out was started"):
        tune(space, started, 1, NullProgress())


@pytest.mark.parametrize("name", ["train.log", "notes.txt"])
def test_other_folders_are_refused(small_space, tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).touch()
    with pytest.raises(RunFolderError, match=f"run contains {name}, which pipe tune did not write"):
        tune(small_space(), tmp_path / "run", 1, NullProgress())


def test_wrong_data_leave_no_folder(small_space, tmp_path):
    space = small_space()
    (tmp_path / "train.tsv").write_text("text\n")
    with pytest.raises((ConfigError, DataError)):
        tune(space, tmp_path / "out", 1, NullProgress())
    assert not (tmp_path / "out").exists()


def test_a_trial_with_an_invalid_combination_fails_and_the_search_goes_on(search, tmp_path):
    # A step schedule of 0 warmup steps is valid; more warmup steps than steps are not.
    out = tmp_path / "out"
    config, settings = search("tune.train.warmup_steps=[0, 50]", "train.warmup_steps=50")
    done = pipe("tune", config, "--out", out, *(w for s in settings for w in ("--set", s)))
    states = [
        trial.state for trial in TrialJournal(out, SearchSpace.load(config, settings)).finished()
    ]
    assert states[0] is TrialState.FAIL
    assert "trial 0 failed: train.warmup_steps is 50, and the run has 6 steps" in done.stderr


def test_a_search_without_a_complete_trial_fails(search, tmp_path):
    done = pipe(
        *words_of(search, tmp_path / "out"), "--set", "train.warmup_steps=50", "--trials", 2
    )
    assert done.returncode == 3, done.stderr
    assert "all 2 trials failed, the first because: train.warmup_steps is 50" in done.stderr


def test_a_search_in_which_nothing_is_learned_fails(search, tmp_path):
    # Half of the rows have either label, and no word predicts it.
    config, settings = search(trials=1)
    for name, rows in (("train", 100), ("dev", 40), ("test", 40)):
        lines = [f"word\t{number % 2}" for number in range(rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines, ""]))
    full = [s for s in settings if not s.startswith("train.max_steps")]
    full += ["train.epochs=1", "train.batch_size=50"]
    full = [s for s in full if not s.startswith("tune.train.batch_size")]
    done = pipe("tune", config, "--out", tmp_path / "out", *(w for s in full for w in ("--set", s)))
    assert done.returncode == 3, done.stderr
    assert "next: pipe export" not in done.stdout
    assert "The model learned nothing useful" in done.stderr


@pytest.mark.slow
def test_a_killed_launcher_ends_its_jobs_and_a_killed_job_does_not_end_the_search(search, tmp_path):
    out = tmp_path / "out"
    words = [*words_of(search, out, trials=8), "--jobs", 2]
    with ForkedPipe(*words) as launcher:
        until(launcher, lambda: len(claims(out)) >= 3)
        (job,) = children(launcher.pid)
        launcher.kill()
        launcher.wait()
        end = time.monotonic() + 60
        while Path(f"/proc/{job}").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
    with ForkedPipe(*words) as launcher:
        until(launcher, lambda: children(launcher.pid))
        (job,) = children(launcher.pid)
        os.kill(job, signal.SIGKILL)
        done = launcher.finish(300)
    assert done.returncode == 0, done.stderr
    assert [trial.number for trial in read_result(out).trials] == list(range(8))


def children(pid):
    """The processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
