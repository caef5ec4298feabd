"""The steps of training from scratch are scored, and compared with the steps before."""

import pytest

from pipework.benchmarks.studies import scratch
from pipework.benchmarks.studies.accuracy import minutes
from pipework.benchmarks.studies.scratch import STEPS, Step, difference, main
from pipework.run_folder.manifest import read_manifest


@pytest.fixture
def runs(trained_run, tmp_path):
    """Two steps with two seeds each, all the same run."""
    for folder in ("first", "taught"):
        (tmp_path / folder).mkdir()
        for seed in (1, 2):
            (tmp_path / folder / f"seed-{seed}").symlink_to(trained_run)
    return tmp_path


def test_the_steps_are_scored_and_stored(runs, trained_run, run_study, monkeypatch):
    steps = {
        "tiny": Step(folder="first"),
        "distilled": Step(folder="taught", against="tiny", after=("first",)),
    }
    monkeypatch.setattr(scratch, "STEPS", steps)
    result = run_study(main, "--runs", runs)
    tiny, distilled = result.arms
    assert tiny.dev == distilled.dev
    assert tiny.dev[0] == pytest.approx(
        100 * read_manifest(trained_run).data.metrics["dev"].scores["accuracy"]
    )
    assert tiny.difference is None
    assert (distilled.difference.mean, distilled.difference.against) == (0.0, "tiny")
    assert tiny.minutes_before == 0
    assert distilled.minutes_before == pytest.approx(2 * minutes(trained_run))
    assert tiny.settings["preset"] == "tiny"
    assert "seed" not in tiny.settings
    assert str(runs) not in result.model_dump_json()
    rows = list(result.table_rows())
    assert rows[1][2].endswith("** ± 0.00")
    assert rows[2][:3] == ("SVM on TF-IDF of 1 to 3 characters", "", "90.36")
    assert "best dev score (tiny, seed " in result.title()


def test_each_step_is_compared_with_an_earlier_step_and_follows_its_teachers():
    names = []
    folders = [step.folder for step in STEPS.values()]
    for name, step in STEPS.items():
        assert step.against is None or step.against in names
        assert set(step.after) <= {*folders[: len(names)], "scratch-pretraining"}
        names.append(name)


def test_a_difference_has_students_t_bounds():
    found = difference("a", (90.0, 91.0, 92.0), (91.0, 91.5, 94.0))
    assert found.mean == pytest.approx(3.5 / 3)
    assert found.high - found.mean == pytest.approx(4.3027 * 0.763763 / 3**0.5, rel=1e-3)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert difference("a", (90.0,), (91.0,)) is None
