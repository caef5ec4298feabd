"""Layers that int8 degrades fall back one by one; if that does not help, the export fails."""

import re
import shutil

import pytest

from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings, RoundedToleranceSettings, TolerancesSettings
from pipework.export.convert.onnx2openvino import OpenVinoConverter
from pipework.export.quantize.mixed_precision import SENSITIVITY_ROWS, CandidateRunner
from pipework.export.run import export
from pipework.run_folder.engine_record import Precision
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.openvino import PRECISION_PATH, shared_core
from pipework.tasks.outputs import Outputs
from tests.export.conftest import ENGINES, change_weights

DYNAMIC, OPENVINO = ENGINES["onnx-int8-dynamic"], ENGINES["openvino-int8-static"]
QUICK = ExportSettings(speed_s=0, dev_rows=100, calibration_rows=80)  # > SENSITIVITY_ROWS
LOUD = "bert.encoder.layer.0.output.dense"


@pytest.fixture
def loud_run(trained_run, tmp_path):
    """A run with a layer whose largest input channel leaves int8 no resolution for the others."""

    def loud(weights):
        (up,) = (name for name in weights if name.endswith("layer.0.intermediate.dense.weight"))
        weights[up][0] *= 1e4
        weights[up.replace("intermediate", "output")][:, 0] /= 1e4

    run = shutil.copytree(trained_run, tmp_path / "loud")
    change_weights(run, loud)
    return run


def test_the_layer_that_int8_degrades_falls_back_and_is_reported(loud_run, noting):
    (engine,) = export(loud_run, noting, [DYNAMIC], settings=ExportSettings(speed_s=0.1))
    assert engine.proven
    (layer,) = engine.built.kept
    assert (layer.name, layer.precision) == (LOUD, Precision.FP32)
    log = "\n".join(noting.lines)
    before = float(re.search(r"int8 with float32: dev score (\S+) instead", log)[1])
    assert engine.parity.scores.engine - before == pytest.approx(layer.gain, abs=1e-4)
    changed = [int(count) for count in re.findall(r"(\d+) labels changed", log)]
    assert changed[1] < changed[0]
    assert changed[1] <= 0.03 * 408
    assert "trying float32 for the most sensitive layers" in log
    assert f"{LOUD} in float32: dev score" in log
    assert "speed with 1 layers in float32: " in log
    assert log.count("texts/s") == 2


def fallback_precision(run, engine):
    """Return the fallback precision that the OpenVINO model records."""
    (path,) = (run / one.path for one in engine.files if one.path.endswith(".xml"))
    return shared_core().read_model(path).get_rt_info(PRECISION_PATH).value


def negated(outputs):
    return Outputs(-outputs.values, outputs.offsets)


@pytest.mark.slow
def test_layers_fall_back_to_bf16_first(run, noting, monkeypatch):
    monkeypatch.setattr(OpenVinoConverter, "fallback_precision", lambda _: Precision.BF16)
    judged = []

    def infer(runner, graph, encodings, *, real=CandidateRunner.infer):
        found = real(runner, graph, encodings)
        if graph.name == "fp32.onnx" or len(encodings) <= SENSITIVITY_ROWS:
            return found
        judged.append(runner.fallback_precision)
        return negated(found) if len(judged) == 1 else found  # as if one layer repaired it

    monkeypatch.setattr(CandidateRunner, "infer", infer)
    (engine,) = export(run, noting, [OPENVINO], settings=QUICK)
    assert engine.proven
    (layer,) = engine.built.kept
    assert layer.precision is Precision.BF16
    assert judged == [Precision.BF16] * 2
    assert fallback_precision(run, engine) == "bf16"
    log = "\n".join(noting.lines)
    assert "trying bf16 for the most sensitive layers" in log
    assert f"{layer.name} in bf16: dev score" in log
    assert "in float32" not in log


@pytest.mark.slow
def test_float32_is_tried_if_bf16_layers_are_not_enough(run, noting, monkeypatch):
    monkeypatch.setattr(OpenVinoConverter, "fallback_precision", lambda _: Precision.BF16)
    judged = []

    def infer(runner, graph, encodings, *, real=CandidateRunner.infer):
        found = real(runner, graph, encodings)
        if graph.name == "fp32.onnx" or len(encodings) <= SENSITIVITY_ROWS:
            return found
        judged.append(runner.fallback_precision)
        repaired = judged.count(Precision.FP32) > 1  # by the first layer in float32
        return found if repaired else negated(found)

    monkeypatch.setattr(CandidateRunner, "infer", infer)
    (engine,) = export(run, noting, [OPENVINO], settings=QUICK)
    assert engine.proven
    assert judged == [Precision.BF16] * 5 + [Precision.FP32] * 2
    assert [layer.precision for layer in engine.built.kept] == [Precision.FP32]
    assert fallback_precision(run, engine) == "f32"
    (path,) = (run / one.path for one in engine.files if one.path.endswith(".xml"))
    found = shared_core().read_model(path).get_ops()
    weights = [one for one in found if one.get_type_name() == "Constant" and len(one.shape) > 1]
    integers = [one for one in weights if one.get_friendly_name().endswith(":int8")]
    assert len(integers) == 11 + 1  # of 12 layers, and the table of words


@pytest.mark.slow
@pytest.mark.parametrize("degraded", [False, True])
def test_float32_is_used_if_bf16_fallback_layers_do_not_help(run, noting, monkeypatch, degraded):
    monkeypatch.setattr(OpenVinoConverter, "fallback_precision", lambda _: Precision.BF16)
    compared = []

    def infer(runner, graph, encodings, *, real=CandidateRunner.infer):
        if len(encodings) > SENSITIVITY_ROWS:
            compared.append((graph.name, runner.fallback_precision))
        found = real(runner, graph, encodings)
        lower = degraded and runner.fallback_precision is Precision.BF16
        return negated(found) if lower else found

    monkeypatch.setattr(CandidateRunner, "infer", infer)
    (engine,) = export(run, noting, [OPENVINO], settings=QUICK)
    assert engine.proven
    assert engine.built.kept == ()
    assert fallback_precision(run, engine) == ("f32" if degraded else "bf16")
    plain = [precision for name, precision in compared if name == "fp32.onnx"]
    tried = [precision for name, precision in compared if name != "fp32.onnx"]
    assert plain == [Precision.FP32]
    each_layer = [Precision.BF16] * 4  # of 12
    assert tried == [Precision.BF16, *([*each_layer, Precision.FP32] if degraded else [])]


@pytest.mark.slow
def test_an_engine_that_fallback_layers_do_not_repair_is_rejected(run, noting):
    # An impossible limit, which --set would not accept.
    never = TolerancesSettings(int8=RoundedToleranceSettings.model_construct(score_drop=-1.0))
    settings = QUICK.model_copy(update={"tolerances": never})
    with pytest.raises(CheckFailedError) as caught:
        export(run, noting, [DYNAMIC], settings=settings)
    assert caught.value.exit_code == 3
    assert sum(" in float32: dev score" in line for line in noting.lines) == 4  # of 12 layers
    assert read_manifest(run).engines == ()
