"""int8: near the checkpoint in every form, blind to who shares the batch, and smaller."""

import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipework.errors import ConfigError
from pipework.export.config import ExportSettings
from pipework.export.quantize.calibration import bound_together, find_ranges, linears
from pipework.export.quantize.onnx2int8 import onnx_to_int8
from pipework.export.quantize.qdq_graph import dynamic, largest_weight, static, tables
from pipework.export.rows.run_rows import Subject
from pipework.export.run import export
from pipework.progress import Silent
from pipework.run_folder.engine_record import EngineFormat, Layout, Precision, Scaling, Variant
from pipework.run_folder.manifest import read_manifest

FORMS = [
    (EngineFormat.ONNX, Scaling.DYNAMIC, Layout.PADDED),
    (EngineFormat.ONNX, Scaling.STATIC, Layout.PACKED),
    (EngineFormat.OPENVINO, Scaling.STATIC, Layout.PADDED),
    (EngineFormat.OPENVINO, Scaling.STATIC, Layout.PACKED),
]
RNG = np.random.default_rng(0)
UNEVEN_K = np.array([50, 1, 1, 0.02, 1, 1, 1, 0], np.float32)  # channels, the last always 0


def int8(format_, scaling, layout):
    return Variant(format=format_, precision=Precision.INT8, layout=layout, scaling=scaling)


@pytest.fixture(scope="module")
def int8_run(trained_run, tmp_path_factory):
    """A run with an engine of each form; read it only."""
    run = tmp_path_factory.mktemp("runs") / "int8"
    shutil.copytree(trained_run, run)
    settings = ExportSettings(speed_s=0, calibration_rows=32, dev_rows=100)
    export(run, Silent(), [int8(*form) for form in FORMS], settings=settings)
    return run


def test_every_form_is_proven_and_no_layer_given_back(int8_run):
    engines = read_manifest(int8_run).engines
    assert {engine.name for engine in engines} == {int8(*form).label for form in FORMS}
    for engine in engines:
        assert engine.proven
        assert engine.kept == ()
        assert 1e-4 < engine.parity.max_abs < 0.5  # int8 it is, and near


def test_an_engine_answers_the_same_whoever_shares_the_batch(int8_run):
    for engine in read_manifest(int8_run).engines:
        assert engine.parity.spread < 0.05


def test_onnxruntime_does_not_fuse_the_scales_of_tokens_into_one(int8_run):
    for engine in read_manifest(int8_run).engines:
        if engine.scaling is Scaling.DYNAMIC:
            assert engine.fusions
            assert "MatMulIntegerToFloat" not in engine.fusions


def test_the_weights_of_linear_layers_are_stored_as_int8(int8_run):
    for engine in read_manifest(int8_run).engines:
        if engine.format is EngineFormat.ONNX:
            graph = onnx.load(int8_run / engine.files[0].path).graph
            assert linears(graph) == ()
            assert sum(one.data_type == TensorProto.INT8 for one in graph.initializer) >= 12


@pytest.mark.parametrize("format_", [EngineFormat.OPENVINO, EngineFormat.TENSORRT])
def test_dynamic_scales_are_of_onnxruntime_alone(trained_run, tmp_path, format_):
    subject = Subject.open(trained_run, read_manifest(trained_run), ExportSettings())
    path = tmp_path / "model.onnx"
    with pytest.raises(ConfigError, match=f"{format_} takes int8 with static scales only"):
        onnx_to_int8(path, path, int8(format_, Scaling.DYNAMIC, Layout.PADDED), subject, Silent())


# A graph of two layers on one input, as query and key are, and one behind them.
A, B, C = (RNG.normal(size=(8, 6)).astype(np.float32) for _ in "ABC")
C = C[:6]


def small_graph():
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["a"], name="/model/block/query/MatMul"),
        helper.make_node("MatMul", ["x", "B"], ["b"], name="/model/block/key/MatMul"),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("MatMul", ["sum", "C"], ["logits"], name="/model/block/dense/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "T", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(matrix, name)
            for name, matrix in zip("ABC", (A, B, C), strict=True)
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run_graph(model, x):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


def tokens(batch, length):
    return (RNG.normal(size=(batch, length, 8)) * UNEVEN_K).astype(np.float32)


def ranges_of(model, tmp_path, calls):
    onnx.save(model, tmp_path / "plain.onnx")
    layers = linears(model.graph)
    return find_ranges(tmp_path / "plain.onnx", layers, [{"x": x} for x in calls], Silent())


def test_layers_are_named_by_their_modules_and_bound_by_what_they_read():
    layers = linears(small_graph().graph)
    assert [layer.name for layer in layers] == ["block.query", "block.key", "block.dense"]
    groups = [[layer.weight for layer in group] for group in bound_together(layers)]
    assert groups == [["A", "B"], ["C"]]


def test_a_range_is_the_largest_of_all_calls_by_channel(tmp_path):
    calls = [tokens(2, 3), tokens(1, 5)]
    ranges = ranges_of(small_graph(), tmp_path, calls)
    largest_K = np.max([np.abs(x).max(axis=(0, 1)) for x in calls], axis=0)
    np.testing.assert_array_equal(ranges["x"], largest_K)
    assert ranges.keys() == {"x", "sum"}


def test_dynamic_scales_are_of_each_token():
    model, x = small_graph(), tokens(2, 3)
    plain = run_graph(model, x)
    dynamic(model, linears(model.graph), largest_weight())
    found = run_graph(model, x)
    assert 0 < np.abs(found - plain).max() < 0.05 * np.abs(plain).max()
    loud = np.concatenate([x, 1000 * tokens(2, 3)])
    np.testing.assert_array_equal(run_graph(model, loud)[:2], found)


@pytest.mark.parametrize("unsigned", [False, True])
def test_static_scales_bear_channels_that_differ_a_thousandfold(tmp_path, unsigned):
    model, x = small_graph(), tokens(8, 16)
    plain = run_graph(model, x)
    ranges = ranges_of(model, tmp_path, [x])
    static(model, linears(model.graph), ranges, unsigned=unsigned, largest=largest_weight())
    found = run_graph(model, x)
    assert 0 < np.abs(found - plain).mean() < 0.02 * np.abs(plain).mean()


def test_layers_that_are_not_asked_for_stay_as_they_are():
    model, x = small_graph(), tokens(2, 3)
    plain = run_graph(model, x)
    static(model, [], {}, unsigned=True)
    np.testing.assert_array_equal(run_graph(model, x), plain)
    dynamic(model, linears(model.graph)[:1])
    assert [layer.weight for layer in linears(model.graph)] == ["B", "C"]


def test_a_large_table_is_stored_as_int8_and_a_vector_keeps_its_size():
    vectors = (RNG.normal(size=(2000, 8)) * np.logspace(-3, 3, 2000)[:, None]).astype(np.float32)
    node = helper.make_node("Gather", ["words", "x"], ["logits"])
    graph = helper.make_graph(
        [node],
        "table",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["B", "T"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(vectors, "words")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    plain_size = model.ByteSize()
    tables(model)
    assert model.ByteSize() < 0.4 * plain_size
    found = run_graph(model, np.arange(2000)[None])[0]
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    assert 1e-3 < (np.abs(found - vectors) / largest).max() < 1 / 127
