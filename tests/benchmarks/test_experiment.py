"""An experiment can be stopped and started again, and looks at test when all is trained."""

import pytest

from benchmarks import experiment as module
from benchmarks.experiment import Experiment, Training, difference
from benchmarks.experiment_results import experiment_rows, experiment_summary
from pipework.errors import ConfigError, StoppedError
from pipework.progress import Silent

QUICK = ["train.max_steps=30", "train.precision=fp32"]


@pytest.fixture
def trainings(tmp_path):
    """A teacher with two seeds and its student, on a few made-up rows."""
    for name, count in (("train", 40), ("dev", 12), ("test", 10)):
        rows = "".join(f"{'good' if n % 2 else 'bad'} thing {n}\t{n % 2}\n" for n in range(count))
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    data = {"root": str(tmp_path)} | {one: f"{one}.tsv" for one in ("train", "dev", "test")}
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


def experiment(tmp_path, trainings, overrides=QUICK):
    return Experiment(
        work=tmp_path / "work", trainings=trainings, overrides=overrides, progress=Silent()
    )


def test_arms_have_scores_differences_and_minutes_of_what_they_need(tmp_path, trainings):
    one = experiment(tmp_path, trainings)
    arms = one.run()
    assert [arm.name for arm in arms] == ["first", "taught"]
    assert all(arm.dev == arm.test == (100.0, 100.0) for arm in arms)
    assert arms[0].difference is None
    assert arms[0].minutes_before == 0
    assert (arms[1].difference.mean, arms[1].difference.against) == (0.0, "first")
    assert arms[1].minutes_before == pytest.approx(2 * arms[0].minutes)
    result = one.result("scratch", "made up", arms, {"linear": 90.0})
    assert "teacher" not in result.arms[1].settings  # a path of this machine
    cells = list(experiment_rows(result))
    assert cells[1][:3] == ("taught", "100.00 ± 0.00", "**100.00** ± 0.00")
    assert cells[2][:3] == ("linear", "", "90.00")
    assert "best on dev (first, seed 1, 100.00) has **100.00** on test" in experiment_summary(
        result
    )


def test_a_second_start_trains_nothing_again_and_one_that_was_stopped_goes_on(
    tmp_path, trainings, monkeypatch
):
    real, names = module.train, []
    stopped = StoppedError("stopped", "go on", 15)

    def train(config, out, progress, *, resume):
        names.append(f"{out.parent.name} {out.name}")
        if len(names) == 3:
            raise stopped
        return real(config, out, progress, resume=resume)

    looked = []
    real_look = module.evaluate_run
    monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(
        module, "evaluate_run", lambda *given: looked.append(given[2]) or real_look(*given)
    )
    with pytest.raises(StoppedError):
        experiment(tmp_path, trainings).run()
    assert names == ["first seed-1", "first seed-2", "taught seed-1"]
    assert looked == []  # not before all are trained
    experiment(tmp_path, trainings).run()
    assert names[3:] == ["taught seed-1", "taught seed-2"]
    assert looked == ["test"] * 4
    experiment(tmp_path, trainings).run()
    assert len(names) == 5
    assert len(looked) == 4


def test_runs_with_other_settings_are_not_taken_for_its_own(tmp_path, trainings):
    experiment(tmp_path, trainings[:1]).run()
    with pytest.raises(ConfigError, match="was trained with other settings"):
        experiment(tmp_path, trainings[:1], [*QUICK, "train.clip=2"]).run()


def test_a_difference_has_the_interval_of_students_t():
    found = difference("a", (90.0, 91.0, 92.0), (91.0, 91.5, 94.0))
    assert found.mean == pytest.approx(3.5 / 3)
    assert found.high - found.mean == pytest.approx(4.3027 * 0.763763 / 3**0.5, rel=1e-3)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert difference("a", (90.0,), (91.0,)) is None
