import pytest

from pipework.benchmarks.studies.accuracy import main
from pipework.export.inference import evaluate_run
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric


def test_the_stored_score_equals_that_of_the_run(trained_run, run_study):
    words = ("--run", trained_run, "--name", "sample", "--split", "dev")
    floor = ("--floor", "naive Bayes=63.2")
    result = run_study(main, *words, *floor, "--command", "pipe train sample")
    dev = read_manifest(trained_run).data.metrics["dev"]
    assert result.value == pytest.approx(100 * dev.scores[Metric.ACCURACY])
    assert result.rows == dev.rows
    assert result.floors["naive Bayes"] == 63.2
    assert result.floors["linear model"] > 50
    assert result.minutes > 0
    evaluation = evaluate_run(trained_run, None, "dev", None, NullProgress())
    assert result.calibration_errors == (evaluation.calibration.error,)
    assert result.uncalibrated_errors == (evaluation.uncalibrated.error,)
    fitted = result.model_copy(update={"uncalibrated_errors": (0.25,)})
    cells = dict(zip(fitted.HEAD, next(fitted.table_rows()), strict=True))
    assert cells["calibration error"] == f"{evaluation.calibration.error:.3f}, before: 0.250"
    assert result.settings["batch_size"] == 16


def test_a_floor_without_a_number_is_reported(trained_run, tmp_path, capsys):
    words = ["--run", str(trained_run), "--name", "sample", "--floor", "high"]
    assert main([*words, "--out", str(tmp_path / "r.json")]) == 2
    assert "expected NAME=PERCENT" in capsys.readouterr().err
