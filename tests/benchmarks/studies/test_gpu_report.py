import shutil

import pytest

from pipework.benchmarks.studies.documents.readme import RESULTS
from pipework.benchmarks.studies.gpu_report import main

STATES = {
    "passed": ("done", "12\n"),
    "without": ("skipped", "one GPU\n"),
    "wrong": ("failed", "2\n"),
}


@pytest.fixture
def work(tmp_path):
    """Return the folder of three steps with a result."""
    for step, (folder, text) in STATES.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / step).write_text(text)
    (tmp_path / "results").mkdir()
    shutil.copyfile(RESULTS / "mrpc-offline.json", tmp_path / "results" / "speed-mrpc.json")
    shutil.copyfile(RESULTS / "mrpc-serving-8.json", tmp_path / "results" / "served-mrpc.json")
    return tmp_path


def report(work, *steps):
    code = main(["--work", str(work), "--out", str(work / "report.txt"), *steps])
    return code, (work / "report.txt").read_text().splitlines()


def test_each_step_has_its_state(work, capsys):
    code, lines = report(work, *STATES, "later", "--left-out=other")
    assert code == 3
    assert lines[:6] == [
        "passed: passed in 12 s",
        "without: skipped: one GPU",
        "wrong: failed: 2",
        "later: failed: not run, because a step that it needs has failed",
        "other: skipped: a step with the same command ran",
        "",
    ]
    assert capsys.readouterr().out.splitlines() == lines


def test_measurements_are_listed(work):
    code, lines = report(work, "passed", "without")
    assert code == 0
    assert any(line.startswith("speed-mrpc: onnx-fp32: ") for line in lines)
    assert any(line.startswith("served-mrpc: 16 clients: ") for line in lines)
    assert not any("tokenizing" in line for line in lines)
