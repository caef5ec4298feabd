"""int8 engines: close to the checkpoint, independent of other inputs in the batch, smaller."""

import shutil

import onnx
import pytest
from onnx import TensorProto

from pipework.errors import ConfigError
from pipework.export.config import ExportSettings
from pipework.export.convert import onnx2ort
from pipework.export.quantize.calibration import linear_layers
from pipework.export.quantize.onnx2int8 import onnx_to_int8
from pipework.export.rows.run_rows import RunRows
from pipework.export.run import export
from pipework.progress import NullProgress
from pipework.run_folder.engine_record import Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest
from pipework.serve.engines.cuda import Gpu
from tests.conftest import Noting
from tests.export.conftest import INT8_LAYERS
from tests.repetitions import repeated


def int8(format_, scaling, layout):
    return Variant(format=format_, precision=Precision.INT8, layout=layout, scaling=scaling)


DYNAMIC = int8("onnx", Scaling.DYNAMIC, Layout.PADDED)
STATIC = int8("onnx", Scaling.STATIC, Layout.PACKED)
OPENVINO = {
    Layout.PACKED: int8("openvino", Scaling.GROUPED, Layout.PACKED),
    Layout.PADDED: int8("openvino", Scaling.STATIC, Layout.PADDED),
}
VARIANTS = [[DYNAMIC, OPENVINO[Layout.PACKED]], [STATIC, OPENVINO[Layout.PADDED]]]

L4 = Gpu(name="NVIDIA L4", capability=89)


@pytest.fixture(scope="module", params=repeated(VARIANTS), ids=["dynamic", "static"])
def int8_export(request, trained_run, tmp_path_factory):
    """A run with an onnx and an openvino engine, built on a machine with a GPU, and the notes."""
    run, noting = tmp_path_factory.mktemp("runs") / "int8", Noting()
    shutil.copytree(trained_run, run)
    settings = ExportSettings(speed_s=0, calibration_rows=32, dev_rows=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx2ort, "cuda_gpu", lambda: L4)
        export(run, noting, request.param, settings=settings)
    return run, noting.lines


@pytest.fixture
def int8_run(int8_export):
    return int8_export[0]


def test_nodes_that_a_gpu_leaves_to_the_cpu_are_reported(int8_export):
    run, lines = int8_export
    (engine,) = (one for one in read_manifest(run).engines if one.format == "onnx")
    graph = run / engine.files[0].path
    count = sum(node.op_type == "MatMulInteger" for node in onnx.load(graph).graph.node)
    assert (count > 0) is (engine.scaling is Scaling.DYNAMIC)
    note = (
        f"onnx-int8-dynamic: onnxruntime has no CUDA kernel for {count} MatMulInteger nodes: "
        "NVIDIA L4 waits for the CPU; use --precision fp16, or --to tensorrt --precision int8"
    )
    assert [line for line in lines if "CUDA" in line] == [note] * bool(count)
    assert onnx2ort.cuda_warning(graph, None) is None


@pytest.mark.slow
def test_every_form_passes_without_fallback_layers(int8_run):
    engines = read_manifest(int8_run).engines
    assert [engine.format for engine in engines] == ["onnx", "openvino"]
    for engine in engines:
        assert engine.proven
        assert engine.built.kept == ()
        assert 1e-4 < engine.parity.max_abs < 0.5  # int8 it is, and near


def test_the_float32_graph_is_not_part_of_the_engine(int8_run):
    engines = [each for each in read_manifest(int8_run).engines if each.format == "openvino"]
    names = {file.path.rpartition("/")[2] for engine in engines for file in engine.files}
    assert names == {"model.xml", "model.bin", "rows.npz"}


def test_results_do_not_depend_on_other_inputs_of_the_batch(int8_run):
    for engine in read_manifest(int8_run).engines:
        assert engine.parity.spread < 0.05


def test_onnxruntime_does_not_fuse_the_scales_of_tokens(int8_run):
    for engine in read_manifest(int8_run).engines:
        if engine.scaling is Scaling.DYNAMIC:
            assert engine.built.fusions
            assert "MatMulIntegerToFloat" not in engine.built.fusions


def test_the_weights_of_linear_layers_are_stored_as_int8(int8_run):
    for engine in read_manifest(int8_run).engines:
        if engine.format == "onnx":
            graph = onnx.load(int8_run / engine.files[0].path).graph
            assert linear_layers(graph) == ()
            assert sum(one.data_type == TensorProto.INT8 for one in graph.initializer) >= 12


@pytest.mark.parametrize("format_", ["openvino", "tensorrt"])
def test_only_onnxruntime_supports_dynamic_scales(trained_run, tmp_path, format_):
    run_rows = RunRows.open(trained_run, read_manifest(trained_run), ExportSettings())
    path = tmp_path / "model.onnx"
    with pytest.raises(ConfigError, match=f"{format_} does not support int8 with dynamic scales"):
        onnx_to_int8(
            path, path, int8(format_, Scaling.DYNAMIC, Layout.PADDED), run_rows, NullProgress()
        )


def test_the_layers_in_int8_are_returned_by_their_modules(exported_run, tmp_path):
    manifest = read_manifest(exported_run)
    settings = ExportSettings(speed_s=0, dev_rows=10)
    run_rows = RunRows.open(exported_run, manifest, settings)
    graph = exported_run / manifest.engines[0].files[0].path
    layers = onnx_to_int8(graph, tmp_path / "model.onnx", DYNAMIC, run_rows, NullProgress())
    assert layers.fallback == ()
    assert layers.int8 == INT8_LAYERS
