"""The end of a run reports what the model learned."""

from contextlib import suppress
from unittest.mock import Mock

import pytest

from pipework.errors import CheckFailedError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest
from pipework.tasks import logit_scale
from pipework.train import finalize
from pipework.train.finalize import both_scores
from pipework.train.run import train
from tests.train.learning import learn


def test_a_run_that_learns_nothing_names_the_setting_to_change(small, tmp_path):
    config = small("train.learning_rate=1e-9", "train.epochs=1")
    with pytest.raises(CheckFailedError, match="learned nothing useful") as caught:
        train(config, tmp_path / "run", NullProgress())
    data = read_manifest(tmp_path / "run").data
    assert data.verdict in str(caught.value)
    assert str(caught.value).endswith(data.findings[-1])
    assert "train.learning_rate (now 1e-09)" in data.findings[-1]
    with pytest.raises(CheckFailedError, match=r"The model learned nothing"):
        train(config, tmp_path / "run", NullProgress(), resume=True)


@pytest.mark.parametrize("calibrate", ["false", "true"])
@pytest.mark.parametrize("at", ["promote", "finish"])
def test_the_end_of_a_run_can_be_interrupted(small, tmp_path, monkeypatch, at, calibrate):
    monkeypatch.setattr(logit_scale, "FEWEST", 10)
    config = small(f"train.calibrate={calibrate}")
    whole = learn(config, tmp_path / "whole").model
    assert (whole.calibration is not None) == (calibrate == "true")
    with monkeypatch.context() as patch:
        patch.setattr(finalize, at, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            learn(config, tmp_path / "run")
    with suppress(CheckFailedError):
        train(config, tmp_path / "run", NullProgress(), resume=True)
    resumed = read_manifest(tmp_path / "run").model
    assert (resumed.calibration, resumed.checkpoint) == (whole.calibration, whole.checkpoint)
    assert not (tmp_path / "run" / "state").exists()


def test_a_run_that_max_steps_shortened_learns_nothing_and_can_be_exported(small, tmp_path, noting):
    manifest = learn(small("train.learning_rate=1e-9"), tmp_path / "run", noting)
    assert "learned nothing useful" in manifest.data.verdict
    assert "train.max_steps ended the run after 6 of 150 steps" in manifest.data.findings[-1]
    assert manifest.data.verdict in noting.lines


def test_fp16_on_a_cpu_prints_a_warning(small, tmp_path, noting):
    learn(small("train.precision=fp16", "train.max_steps=1"), tmp_path / "run", noting)
    assert any(line.startswith("fp16 is emulated on a CPU, and slow") for line in noting.lines)


def test_a_score_that_differs_from_training_has_both_precisions():
    assert both_scores(0.774, 0.774, "bf16") == "0.7740"
    both = "0.7740 in float32, 0.7680 in training, train.precision=bf16"
    assert both_scores(0.774, 0.768, "bf16") == both
