"""An experiment can be stopped and resumed, and evaluates the test split after all training."""

import os
import signal

import pytest

from pipework.benchmarks.studies import experiment as module
from pipework.benchmarks.studies.experiment import Experiment, Training, difference
from pipework.benchmarks.studies.records.experiment_results import (
    experiment_rows,
    experiment_summary,
)
from pipework.errors import ConfigError, PipeError, StoppedError
from pipework.progress import NullProgress

FLOORS = {"linear": 90.0}
QUICK = ["train.max_steps=30", "train.precision=fp32"]


@pytest.fixture
def trainings(tmp_path):
    """A teacher with two seeds and its student, on a few synthetic rows."""
    for name, count in (("train", 40), ("dev", 12), ("test", 10)):
        rows = "".join(f"{'good' if n % 2 else 'bad'} thing {n}\t{n % 2}\n" for n in range(count))
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    data = {"root": str(tmp_path)} | {split: f"{split}.tsv" for split in ("train", "dev", "test")}
    model = {"preset": "tiny", "max_length": 16, "vocab_size": 100}
    train = {"epochs": 30, "batch_size": 8, "learning_rate": 1e-3}
    first = {"data": data, "model": model, "train": train}
    taught = {**first, "train": {**train, "teacher": str(tmp_path / "work" / "first")}}
    return (
        Training(name="first", sections=lambda _: first, seeds=(1, 2)),
        Training(
            name="taught",
            sections=lambda _: taught,
            seeds=(1, 2),
            after=("first",),
            against="first",
        ),
    )


def experiment(tmp_path, trainings, overrides=QUICK, *, jobs=2, progress=None):
    return Experiment(
        work=tmp_path / "work",
        trainings=trainings,
        overrides=overrides,
        jobs=jobs,
        command=("python", "-m", "pipework.benchmarks.studies.scratch"),
        progress=progress or NullProgress(),
    )


class RecordingProgress(NullProgress):
    """Records the started runs, and may send SIGTERM when one starts."""

    def __init__(self, stop_at=None):
        self.started, self.stop_at = [], stop_at

    def note(self, line):
        name, _, _ = line.partition(": started")
        self.started.append(name)
        if name == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_experiment_resumes_and_repeats_no_run(tmp_path, trainings, monkeypatch):
    evaluated = []
    real_evaluate = module.evaluate_run
    monkeypatch.setattr(
        module, "evaluate_run", lambda *args: evaluated.append(args[2]) or real_evaluate(*args)
    )
    first = RecordingProgress(stop_at="taught, seed 1")
    with pytest.raises(StoppedError, match="1 training runs in progress") as stopped:
        experiment(tmp_path, trainings, jobs=1, progress=first).run()
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert first.started == ["first, seed 1", "first, seed 2", "taught, seed 1"]
    assert evaluated == []  # not before all runs are trained
    second = RecordingProgress()
    arms = experiment(tmp_path, trainings, progress=second).run()
    assert second.started == ["taught, seed 1", "taught, seed 2"]
    assert evaluated == ["test"] * 4
    third = RecordingProgress()
    assert experiment(tmp_path, trainings, progress=third).run() == arms
    assert third.started == []
    assert len(evaluated) == 4
    with pytest.raises(ConfigError, match="holds a run that was trained with other settings"):
        experiment(tmp_path, trainings, [*QUICK, "train.clip=2"]).run()
    check_arms(arms, experiment(tmp_path, trainings).result("made up", arms, FLOORS))


def check_arms(arms, result):
    """Check the scores, differences and minutes of the arms."""
    assert [arm.name for arm in arms] == ["first", "taught"]
    assert all(arm.dev == arm.test == (100.0, 100.0) for arm in arms)
    assert arms[0].difference is None
    assert arms[0].minutes_before == 0
    assert (arms[1].difference.mean, arms[1].difference.against) == (0.0, "first")
    assert arms[1].minutes_before == pytest.approx(2 * arms[0].minutes)
    assert "teacher" not in result.arms[1].settings  # a path of this machine
    assert result.at_once == 2
    cells = list(experiment_rows(result))
    assert cells[1][:3] == ("taught", "100.00 ± 0.00", "**100.00** ± 0.00")
    assert cells[2][:3] == ("linear", "", "90.00")
    summary = experiment_summary(result)
    assert "best dev score (first, seed 1, 100.00) has **100.00** on test" in summary


def test_a_failed_run_is_reported_with_the_end_of_its_log(tmp_path, trainings):
    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\t0\n")
    with pytest.raises(PipeError, match="first, seed 1 failed with exit code 2") as failed:
        experiment(tmp_path, trainings, jobs=1).run()
    assert "error: " in failed.value.details
    assert failed.value.hint.endswith("seed-1.log")


def test_a_difference_has_students_t_bounds():
    found = difference("a", (90.0, 91.0, 92.0), (91.0, 91.5, 94.0))
    assert found.mean == pytest.approx(3.5 / 3)
    assert found.high - found.mean == pytest.approx(4.3027 * 0.763763 / 3**0.5, rel=1e-3)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert difference("a", (90.0,), (91.0,)) is None
