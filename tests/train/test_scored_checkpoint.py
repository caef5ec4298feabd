"""The best checkpoint is scored on dev and test."""

import pytest

from pipework.export.inference import evaluate_run
from pipework.progress import NullProgress
from tests.train.learning import learn


@pytest.mark.parametrize("report", ["false", "true"])
def test_the_scores_on_test_are_recorded(small, tmp_path, report):
    manifest = learn(small(f"train.report={report}"), tmp_path / "run")
    assert {name: split.rows for name, split in manifest.data.metrics.items()} == {
        "dev": 12,
        "test": 8,
    }
    again = evaluate_run(tmp_path / "run", None, "test", None, NullProgress())
    assert manifest.data.metrics["test"].scores == again.scores
    assert ": test accuracy" in manifest.data.verdict
