"""What int8 cannot bear is given back, layer by layer, and what nothing helps fails."""

import re
import shutil

import openvino
import pytest
from safetensors.numpy import load_file, save_file

from pipework.errors import CheckFailedError
from pipework.export.config import ExportSettings, ToleranceSettings, TolerancesSettings
from pipework.export.quantize.mixed_precision import SENSITIVITY_ROWS, Trial
from pipework.export.run import export
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest, write_manifest
from pipework.serve.engines.openvino import SAID_AT
from pipework.train.model.checkpoint import FOLDER, records

DYNAMIC = Variant(
    format=EngineFormat.ONNX,
    precision=Precision.INT8,
    layout=Layout.PADDED,
    scaling=Scaling.DYNAMIC,
)
OPENVINO = Variant(
    format=EngineFormat.OPENVINO,
    precision=Precision.INT8,
    layout=Layout.PADDED,
    scaling=Scaling.STATIC,
)
LOUD = "bert.encoder.layer.1.output.dense"


@pytest.fixture
def loud_run(trained_run, tmp_path):
    """A run one of whose layers reads a channel so loud that 8 bits leave nothing of the others."""
    run = tmp_path / "loud"
    shutil.copytree(trained_run, run)
    path = run / FOLDER / "model.safetensors"
    weights = load_file(path)
    (up,) = (name for name in weights if name.endswith("layer.1.intermediate.dense.weight"))
    weights[up][0] *= 1e4
    weights[up.replace("intermediate", "output")][:, 0] /= 1e4
    save_file(weights, path, metadata={"format": "pt"})
    manifest = read_manifest(run)
    model = manifest.model.model_copy(update={"checkpoint": records(run)})
    write_manifest(run, manifest.model_copy(update={"model": model}))
    return run


def test_the_one_layer_that_int8_breaks_is_given_back_and_reported(loud_run, noting):
    (engine,) = export(loud_run, noting, [DYNAMIC], settings=ExportSettings(speed_s=0.1))
    assert engine.proven
    (layer,) = engine.kept
    assert (layer.name, layer.precision) == (LOUD, Precision.FP32)
    told = "\n".join(noting.lines)
    before = float(re.search(r"int8 beside float32 scores (\S+) on dev", told)[1])
    assert engine.parity.scores.engine - before == pytest.approx(layer.gain, abs=1e-4)
    changed = [int(count) for count in re.findall(r"(\d+) answers changed", told)]
    assert changed[0] > 0.03 * 408 >= changed[1]
    assert "layers are given back to float32, the most sensitive first" in told
    assert f"{LOUD} in float32: scores" in told
    assert "what 1 layers in float32 cost: " in told
    assert told.count("texts/s") == 2


def said(run, engine):
    """What the model says is beside int8."""
    (path,) = (run / one.path for one in engine.files if one.path.endswith(".xml"))
    return openvino.Core().read_model(path).get_rt_info(SAID_AT).value


def test_layers_go_back_to_what_is_beside_int8(run, noting, monkeypatch):
    monkeypatch.setattr("pipework.export.quantize.onnx2int8.beside_int8", lambda _: Precision.BF16)
    judged = []

    def answers(trial, graph, encodings, *, real=Trial.answers):
        found_NC = real(trial, graph, encodings)
        if graph.name == "fp32.onnx" or len(encodings) <= SENSITIVITY_ROWS:
            return found_NC
        judged.append(trial.beside)
        return -found_NC if len(judged) == 1 else found_NC  # as if one layer mended it

    monkeypatch.setattr(Trial, "answers", answers)
    (engine,) = export(run, noting, [OPENVINO], settings=ExportSettings(speed_s=0))
    assert engine.proven
    (layer,) = engine.kept
    assert layer.precision is Precision.BF16
    assert judged == [Precision.BF16] * 2
    assert said(run, engine) == "bf16"
    told = "\n".join(noting.lines)
    assert "layers are given back to bf16, the most sensitive first" in told
    assert f"{layer.name} in bf16: scores" in told
    assert "float32" not in told


def test_what_bf16_does_not_mend_float32_layers_may(run, noting, monkeypatch):
    monkeypatch.setattr("pipework.export.quantize.onnx2int8.beside_int8", lambda _: Precision.BF16)
    judged = []

    def answers(trial, graph, encodings, *, real=Trial.answers):
        found_NC = real(trial, graph, encodings)
        if graph.name == "fp32.onnx" or len(encodings) <= SENSITIVITY_ROWS:
            return found_NC
        judged.append(trial.beside)
        mended = judged.count(Precision.FP32) > 1  # by the first layer in float32
        return found_NC if mended else -found_NC

    monkeypatch.setattr(Trial, "answers", answers)
    (engine,) = export(run, noting, [OPENVINO], settings=ExportSettings(speed_s=0))
    assert engine.proven
    assert judged == [Precision.BF16] * 5 + [Precision.FP32] * 2
    assert [layer.precision for layer in engine.kept] == [Precision.FP32]
    assert said(run, engine) == "f32"
    (path,) = (run / one.path for one in engine.files if one.path.endswith(".xml"))
    found = openvino.Core().read_model(path).get_ops()
    weights = [one for one in found if one.get_type_name() == "Constant" and len(one.shape) > 1]
    integers = [one for one in weights if one.get_friendly_name().endswith(":int8")]
    assert len(integers) == 11 + 1  # of 12 layers, and the table of words


@pytest.mark.parametrize("spoilt", [False, True])
def test_where_no_layers_help_float32_is_beside_int8(run, noting, monkeypatch, spoilt):
    monkeypatch.setattr("pipework.export.quantize.onnx2int8.beside_int8", lambda _: Precision.BF16)
    compared = []

    def answers(trial, graph, encodings, *, real=Trial.answers):
        if len(encodings) > SENSITIVITY_ROWS:
            compared.append((graph.name, trial.beside))
        found_NC = real(trial, graph, encodings)
        return -found_NC if spoilt and trial.beside is Precision.BF16 else found_NC

    monkeypatch.setattr(Trial, "answers", answers)
    (engine,) = export(run, noting, [OPENVINO], settings=ExportSettings(speed_s=0))
    assert engine.proven
    assert engine.kept == ()
    assert said(run, engine) == ("f32" if spoilt else "bf16")
    plain = [beside for name, beside in compared if name == "fp32.onnx"]
    tried = [beside for name, beside in compared if name != "fp32.onnx"]
    assert plain == [Precision.FP32]
    each_layer = [Precision.BF16] * 4  # of 12
    assert tried == [Precision.BF16, *([*each_layer, Precision.FP32] if spoilt else [])]


def test_what_giving_back_does_not_mend_is_refused(run, noting):
    # A limit that nothing keeps, which is none that can be set.
    never = TolerancesSettings(int8=ToleranceSettings.model_construct(score_drop=-1.0))
    settings = ExportSettings(speed_s=0, tolerances=never)
    with pytest.raises(CheckFailedError) as caught:
        export(run, noting, [DYNAMIC], settings=settings)
    assert caught.value.exit_code == 3
    assert sum(" in float32: scores" in line for line in noting.lines) == 4  # of 12 layers
    assert read_manifest(run).engines == ()
