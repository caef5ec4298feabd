"""int8 engines: close to the checkpoint, independent of other inputs in the batch, smaller."""

import shutil

import onnx
import pytest
from onnx import TensorProto

from pipework.errors import ConfigError
from pipework.export.config import ExportSettings
from pipework.export.quantize.calibration import linear_layers
from pipework.export.quantize.onnx2int8 import onnx_to_int8
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest

FORMS = [
    (EngineFormat.ONNX, Scaling.DYNAMIC, Layout.PADDED),
    (EngineFormat.ONNX, Scaling.STATIC, Layout.PACKED),
    (EngineFormat.OPENVINO, Scaling.STATIC, Layout.PADDED),
    (EngineFormat.OPENVINO, Scaling.STATIC, Layout.PACKED),
]


def int8(format_, scaling, layout):
    return Variant(format=format_, precision=Precision.INT8, layout=layout, scaling=scaling)


@pytest.fixture(scope="module")
def int8_run(trained_run, tmp_path_factory):
    """A run with an engine of each form; read it only."""
    run = tmp_path_factory.mktemp("runs") / "int8"
    shutil.copytree(trained_run, run)
    settings = ExportSettings(speed_s=0, calibration_rows=32, dev_rows=100)
    export(run, NullProgress(), [int8(*form) for form in FORMS], settings=settings)
    return run


@pytest.mark.slow
def test_every_form_passes_without_fallback_layers(int8_run):
    engines = read_manifest(int8_run).engines
    assert {engine.name for engine in engines} == {int8(*form).label for form in FORMS}
    for engine in engines:
        assert engine.proven
        assert engine.kept == ()
        assert 1e-4 < engine.parity.max_abs < 0.5  # int8 it is, and near


def test_results_do_not_depend_on_other_inputs_of_the_batch(int8_run):
    for engine in read_manifest(int8_run).engines:
        assert engine.parity.spread < 0.05


def test_onnxruntime_does_not_fuse_the_scales_of_tokens(int8_run):
    for engine in read_manifest(int8_run).engines:
        if engine.scaling is Scaling.DYNAMIC:
            assert engine.fusions
            assert "MatMulIntegerToFloat" not in engine.fusions


def test_the_weights_of_linear_layers_are_stored_as_int8(int8_run):
    for engine in read_manifest(int8_run).engines:
        if engine.format is EngineFormat.ONNX:
            graph = onnx.load(int8_run / engine.files[0].path).graph
            assert linear_layers(graph) == ()
            assert sum(one.data_type == TensorProto.INT8 for one in graph.initializer) >= 12


@pytest.mark.parametrize("format_", [EngineFormat.OPENVINO, EngineFormat.TENSORRT])
def test_only_onnxruntime_supports_dynamic_scales(trained_run, tmp_path, format_):
    run_rows = RunRows.open(trained_run, read_manifest(trained_run), ExportSettings())
    path = tmp_path / "model.onnx"
    with pytest.raises(ConfigError, match=f"{format_} supports int8 with static scales only"):
        onnx_to_int8(
            path, path, int8(format_, Scaling.DYNAMIC, Layout.PADDED), run_rows, NullProgress()
        )
