import pytest

from pipework.benchmarks.studies.accuracy import main
from pipework.benchmarks.studies.records.stored_results import read_stored
from pipework.run_folder.manifest import read_manifest
from pipework.tasks.kinds import Metric


def test_the_stored_score_equals_that_of_the_run(trained_run, tmp_path):
    out = tmp_path / "r.json"
    words = [
        "--run",
        str(trained_run),
        "--name",
        "sample",
        "--split",
        "dev",
        "--floor",
        "naive Bayes=63.2",
    ]
    assert main([*words, "--command", "pipe train sample", "--out", str(out)]) == 0
    result = read_stored(out)
    dev = read_manifest(trained_run).data.metrics["dev"]
    assert result.value == pytest.approx(100 * dev.scores[Metric.ACCURACY])
    assert result.rows == dev.rows
    assert result.floors["naive Bayes"] == 63.2
    assert result.floors["linear model"] > 50
    assert result.minutes > 0
    assert result.settings["batch_size"] == 16


def test_a_floor_without_a_number_is_reported(trained_run, tmp_path, capsys):
    words = [
        "--run",
        str(trained_run),
        "--name",
        "sample",
        "--floor",
        "high",
        "--out",
        str(tmp_path / "r.json"),
    ]
    assert main(words) == 2
    assert "expected NAME=PERCENT" in capsys.readouterr().err
