"""A student is compared with its teachers."""

from contextlib import suppress

import numpy as np
import pytest

from pipework.errors import CheckFailedError, RunFolderError
from pipework.export.inference import evaluate_run
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.scoring import bootstrap
from pipework.scoring.bootstrap import TaskOutputs, lower_bound, shows_margin
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.terminal import show_manifest
from pipework.train import finalize
from pipework.train.run import train
from tests.repetitions import repeated

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
MARGIN = 0.02


@pytest.mark.parametrize(("option", "shown"), [("90", "The student is"), ("0", "It is not shown")])
def test_a_student_has_a_verdict_on_its_teacher(small, teacher, tmp_path, capsys, option, shown):
    margin = f"train.teacher_margin={option}"
    options = [f"train.teacher={teacher}", "train.max_steps=8", "train.eval_every=8", margin]
    options.append("train.report=true")
    run = tmp_path / "student"
    with suppress(CheckFailedError):
        train(small(*options), run, NullProgress())
    manifest = read_manifest(run)
    found = manifest.data.teacher
    expected = evaluate_run(teacher, None, "test", None, NullProgress())
    assert found.teacher == pytest.approx(expected.score)
    assert found.student == manifest.data.metrics["test"].scores["accuracy"]
    assert found.low <= found.student - found.teacher
    sentence = f"{shown}{' that the student is' * (option == '0')} at most {option} points worse"
    assert str(found).startswith(f"{sentence} than its teacher teacher: test accuracy")
    show_manifest(run, manifest)
    assert f"{found}"[:40] in capsys.readouterr().out
    assert f"{found}" in (run / "train.log").read_text()
    assert f"{found}" in (run / "report.html").read_text()


def test_a_run_is_completed_if_its_teacher_cannot_be_opened_any_more(
    small, teacher, tmp_path, monkeypatch
):
    def fail(*_):
        message = "gone"
        raise RunFolderError(message)

    monkeypatch.setattr(finalize, "compare_with_teachers", fail)
    options = [f"train.teacher={teacher}", "train.max_steps=8", "train.eval_every=8"]
    with suppress(CheckFailedError):
        train(small(*options), tmp_path / "student", NullProgress())
    assert read_manifest(tmp_path / "student").data.teacher is None


def test_a_run_without_a_teacher_has_no_comparison(trained_teacher):
    assert read_manifest(trained_teacher).data.teacher is None


@pytest.mark.parametrize(
    ("rows", "better"), repeated([(300, 0.03), (300, 0.0), (120, 0.01), (900, 0.0)], 2)
)
def test_a_student_that_is_worse_by_the_margin_is_rarely_called_not_inferior(
    monkeypatch, rows, better
):
    monkeypatch.setattr(bootstrap, "MIN_RESAMPLES", 200)
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    random = np.random.default_rng(0)
    truth = np.zeros(rows, np.int64)

    def outputs(right_N):
        values_NC = np.stack([right_N, ~right_N], axis=1).astype(np.float32)
        return TaskOutputs(outputs=Outputs.of(values_NC), task=TASK)

    passed = 0
    for _ in range(300):
        draw_N = random.random(rows)
        right_N = (draw_N < 0.9 - MARGIN - better) | (draw_N > 1 - better)
        low = lower_bound(outputs(draw_N < 0.9), outputs(right_N), truth)
        passed += shows_margin(low, rows, MARGIN)
    assert passed / 300 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_few_rows_and_a_low_bound_at_the_margin_do_not_show_it():
    assert shows_margin(-0.001, 149, MARGIN)
    assert not shows_margin(-0.001, 148, MARGIN)  # 3 / 148 is above the margin
    assert not shows_margin(-0.02, 300, MARGIN)
    assert not shows_margin(-0.001, 300, 0)
