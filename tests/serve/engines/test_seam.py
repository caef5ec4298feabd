import importlib.util
import shutil
from pathlib import Path

import pytest

from pipework.errors import MissingDependencyError, RunFolderError
from pipework.run_folder.change_limits import ChangeLimits
from pipework.run_folder.engine_record import CalibrationChange, EngineBuild, Precision, Speed
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines import (
    choose_engine,
    faster_engines,
    open_first,
    open_proven,
    usable_engines,
)
from pipework.tasks.kinds import Metric
from pipework.tasks.regression import RegressionTask
from tests.checked_manifest import as_checked


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A run folder to spoil."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_the_first_engine_is_chosen_where_no_name_is_given(run: Path) -> None:
    assert choose_engine(read_manifest(run)).name == "onnx"


def test_an_unknown_engine_is_reported_with_the_known_ones(run: Path) -> None:
    with pytest.raises(RunFolderError, match="has no engine 'fast'; its engines: onnx") as caught:
        choose_engine(read_manifest(run), "fast")
    assert "pipe export RUN --to onnx" in caught.value.hint


@pytest.mark.parametrize("name", ["tokenizer.json", "engines/onnx/model.onnx"])
def test_a_changed_file_is_refused_by_name(copied: Path, name: str) -> None:
    with (copied / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(RunFolderError, match=f"{name} changed"):
        open_proven(copied, read_manifest(copied))


def test_an_engine_without_its_graph_file_is_refused(copied: Path) -> None:
    manifest = read_manifest(copied)
    engine = manifest.engines[0].model_copy(update={"files": ()})
    write_manifest(copied, manifest.model_copy(update={"engines": (engine,)}))
    with pytest.raises(RunFolderError, match=r"expected one file model\.onnx, found 0"):
        open_proven(copied, read_manifest(copied))


def test_a_missing_runtime_is_reported_with_the_install_command(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="onnxruntime is not installed") as caught:
        open_proven(run, read_manifest(run))
    assert caught.value.hint == "pip install 'pipework[cpu]'"


def engine(record, name, speed, *, labels=0.0, change=0.0):
    """Return a record with another speed, share of changed labels and change of probabilities."""
    parity = record.parity.model_copy(
        update={"argmax_agreement": 1 - labels, "flips": 1000 * labels, "max_change": change}
    )
    speed = Speed(
        texts_per_s=speed, batch=8, p50_ms=1, rows=9, threads=1, processor="any", variation=0
    )
    return record.model_copy(update={"name": name, "parity": parity, "speed": speed})


@pytest.fixture
def ranked(run):
    """A manifest with three engines, the fastest first; the first two change predictions."""
    manifest = read_manifest(run)
    (record,) = manifest.engines
    engines = (
        engine(record, "int8", 300, labels=0.012, change=0.26),
        engine(record, "rough", 250, change=0.11),
        engine(record, "bf16", 200, labels=0.002, change=0.1),
        engine(record, "fp32", 100),
    )
    return manifest.model_copy(update={"engines": engines})


def test_the_default_engine_is_the_fastest_within_the_limits_of_changes(ranked):
    assert choose_engine(ranked).name == "bf16"
    order = [record.name for record in usable_engines(ranked)]
    assert order == ["bf16", "fp32", "int8", "rough"]
    wide = ChangeLimits(label_changes=0.02, probability_change=0.3)
    assert usable_engines(ranked, limits=wide)[0].name == "int8"
    strict = ChangeLimits(label_changes=0, probability_change=0)
    assert usable_engines(ranked, limits=strict)[0].name == "fp32"
    assert choose_engine(ranked, "int8").name == "int8"


def test_one_label_may_change_however_few_the_rows(ranked):
    parity = ranked.engines[0].parity
    for flips, rows, allowed in ((1, 10, True), (2, 999, False), (2, 1000, True), (3, 1000, False)):
        change = {"flips": flips, "argmax_agreement": 1 - flips / rows, "max_change": 0.1}
        record = ranked.engines[0].model_copy(update={"parity": parity.model_copy(update=change)})
        assert ChangeLimits().allow(record, ranked.task) is allowed
        assert not ChangeLimits(label_changes=0).allow(record, ranked.task)


def test_the_limit_of_a_regression_is_a_share_of_the_range_of_its_targets(ranked):
    task = RegressionTask(labels=("score",), metric=Metric.PEARSON)
    assert choose_engine(as_checked(ranked.model_copy(update={"task": task}))).name == "fp32"


def test_faster_engines_are_listed_with_their_gain_and_cost(ranked):
    costs = faster_engines(ranked, choose_engine(ranked))
    assert costs == {
        "int8": "1.5 times as fast, changes 1.20% of the labels, probabilities by up to 0.26",
        "rough": "1.2 times as fast, changes 0.00% of the labels, probabilities by up to 0.11",
    }
    assert faster_engines(ranked, ranked.engines[0]) == {}


def test_the_cost_of_an_engine_names_the_calibration_that_it_loses(ranked):
    served = choose_engine(ranked)
    lost = CalibrationChange(
        rows=1000, reference=0.02, engine=0.06, brier_reference=0.3, brier_engine=0.3
    )
    engines = {engine.name: engine for engine in ranked.engines}
    change = {"max_change": 0.05, "calibration": lost}
    parity = engines["rough"].parity.model_copy(update=change)
    engines["rough"] = engines["rough"].model_copy(update={"parity": parity})
    manifest = ranked.model_copy(update={"engines": tuple(engines.values())})
    costs = faster_engines(manifest, served)
    assert costs["rough"].endswith("probabilities by up to 0.05, calibration error by +0.040")


def test_engines_that_cannot_be_compared_here_are_not_faster(ranked):
    fast, slow = ranked.engines[0], ranked.engines[-1]
    elsewhere = fast.speed.model_copy(update={"processor": "another"})
    noise = fast.speed.model_copy(update={"texts_per_s": 105})
    target = EngineBuild(opset=17, built_with={"tensorrt": "1.0"}, target="sm_1", profiles=())
    for changes in (
        {"speed": elsewhere},
        {"speed": noise},
        {"format": "tensorrt", "built": target},
    ):
        engines = (fast.model_copy(update=changes), slow)
        assert faster_engines(ranked.model_copy(update={"engines": engines}), slow) == {}


def test_an_unproven_engine_of_a_low_precision_is_not_the_default(ranked):
    unproven = ranked.engines[0].model_copy(update={"parity": None})
    for precision, default in ((Precision.INT8, "bf16"), (Precision.FP16, "int8")):
        engine = unproven.model_copy(update={"precision": precision})
        engines = (engine, *ranked.engines[1:])
        assert choose_engine(ranked.model_copy(update={"engines": engines})).name == default


def test_the_log_names_faster_engines_and_a_default_beyond_the_limits(run, caplog):
    manifest = read_manifest(run)
    (record,) = manifest.engines
    fast = engine(record, "fast", 300, labels=0.012, change=0.26)
    slow = engine(record, "slow", 100)
    caplog.set_level("INFO", "pipework.serve.engines")
    both = manifest.model_copy(update={"engines": (fast, slow)})
    opened, model = open_first(run, both)
    model.close()
    assert opened.name == "slow"
    line, opened_line = [record.getMessage() for record in caplog.records]
    assert opened_line == f"engine slow of run {manifest.identity.name} is open"
    assert line.startswith("faster engine fast: 3.0 times as fast, changes 1.20% of the labels")
    assert line.endswith("--engine fast")
    caplog.clear()
    open_first(run, manifest.model_copy(update={"engines": (fast,)}))[1].close()
    line = caplog.records[0].getMessage()
    assert line.startswith("engine fast exceeds the limits of changes: it changes 1.20%")
    caplog.clear()
    open_first(run, both, "fast")[1].close()
    assert [record.levelname for record in caplog.records] == ["INFO"]  # the engine is open
