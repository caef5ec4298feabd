"""A student is compared with its teachers on rows that neither has learned."""

from contextlib import suppress

import numpy as np
import pytest

from pipework.errors import CheckFailedError
from pipework.export.inference import evaluate_run
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.run_folder.teacher_record import TeacherRecord
from pipework.scoring import bootstrap
from pipework.scoring.bootstrap import ONE_SIDED, TaskOutputs, paired_interval
from pipework.tasks.kinds import Metric
from pipework.tasks.outputs import Outputs
from pipework.tasks.single_label import SingleLabelTask
from pipework.terminal import show_manifest
from pipework.train.run import train

TASK = SingleLabelTask(labels=("a", "b"), metric=Metric.ACCURACY)
ROWS, MARGIN = 300, 0.02


def record(low, margin=MARGIN):
    return TeacherRecord(
        names="large",
        split="test",
        metric=Metric.ACCURACY,
        teacher=0.9,
        student=0.89,
        low=low,
        margin=margin,
    )


@pytest.mark.parametrize(("option", "shown"), [("100", "The student is"), ("0", "It is not shown")])
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


def test_a_run_without_a_teacher_has_no_comparison(trained_teacher):
    assert read_manifest(trained_teacher).data.teacher is None


def test_a_student_that_is_worse_by_the_margin_is_rarely_called_not_inferior(monkeypatch):
    monkeypatch.setattr(bootstrap, "MIN_RESAMPLES", 200)
    monkeypatch.setattr(bootstrap, "RESAMPLES", 200)
    random = np.random.default_rng(0)
    truth = np.zeros(ROWS, np.int64)

    def outputs(right_N):
        values_NC = np.stack([right_N, ~right_N], axis=1).astype(np.float32)
        return TaskOutputs(outputs=Outputs.of(values_NC), task=TASK)

    passed = 0
    for _ in range(600):
        draw_N = random.random(ROWS)
        teacher, student = outputs(draw_N < 0.9), outputs((draw_N < 0.85) | (draw_N > 0.97))
        low = paired_interval(teacher, student, truth, ONE_SIDED).low
        passed += record(low).not_inferior
    assert 0.02 < passed / 600 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 600)
