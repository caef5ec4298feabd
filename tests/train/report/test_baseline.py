"""The choice between a run and its linear model."""

import pytest

from pipework.run_folder.manifest import BaselineRecord, read_manifest
from pipework.train.report.baseline import FOLDER, better_run


@pytest.mark.parametrize(("gain", "better"), [(0.1, True), (0, True), (-0.1, False)])
def test_the_better_run_has_the_higher_score(trained_run, tmp_path, gain, better):
    manifest = read_manifest(trained_run)
    metric = manifest.task.metric
    score = manifest.data.metrics["dev"].scores[metric] + gain
    baseline = BaselineRecord(
        name="a", rows=9, split="dev", scores={metric: score}, low=-1.0, high=1.0
    )
    data = manifest.data.model_copy(update={"baseline": baseline})
    compared = manifest.model_copy(update={"data": data})
    assert better_run(tmp_path, compared) == tmp_path  # the folder does not exist
    (tmp_path / FOLDER).mkdir()
    assert better_run(tmp_path, compared) == (tmp_path / FOLDER if better else tmp_path)
