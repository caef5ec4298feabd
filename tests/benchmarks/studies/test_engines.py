"""Stored engine results have the manifest's parity figures and measured speeds."""

import shutil

import pytest

from pipework.benchmarks.studies.engines import engines, main
from pipework.errors import ConfigError, RunFolderError
from pipework.progress import NullProgress
from pipework.run_folder.manifest import read_manifest, write_manifest


def test_parity_is_read_from_the_manifest_and_speed_is_measured(exported_run, run_study):
    result = run_study(main, "--run", exported_run, "--name", "the sample", "--seconds", 0.3)
    (engine,) = result.engines
    (record,) = read_manifest(exported_run).engines
    assert (engine.name, engine.max_abs) == (record.name, record.parity.max_abs)
    assert engine.texts_per_s > 0
    assert result.by_hand_texts_per_s > 0
    assert str(exported_run) not in result.model_dump_json()


def test_a_run_without_the_baseline_engine_is_reported(trained_run):
    with pytest.raises(RunFolderError, match="has no engine 'onnx-fp32'"):
        engines(trained_run, "x", 0.1, (), NullProgress())


def test_an_engine_without_a_score_is_reported(exported_run, tmp_path):
    run = shutil.copytree(exported_run, tmp_path / "run")
    manifest = read_manifest(run)
    (record,) = manifest.engines
    unscored = record.parity.model_copy(update={"scores": None})
    engine = record.model_copy(update={"parity": unscored})
    write_manifest(run, manifest.model_copy(update={"engines": (engine,)}))
    with pytest.raises(ConfigError, match="onnx-fp32 has no score"):
        engines(run, "x", 0.1, (), NullProgress())
