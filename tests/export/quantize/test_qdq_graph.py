"""Quantized layers on small graphs: near the float graph, independent of the other inputs."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipework.export.quantize.calibration import find_moments, find_ranges, linear_layers
from pipework.export.quantize.qdq_graph import (
    GROUP,
    GraphWriter,
    largest_weight,
    quantize_dynamic,
    quantize_embeddings,
    quantize_grouped,
    quantize_static,
    round_groups,
    tensor_name,
    with_whole_groups,
)
from pipework.progress import NullProgress

RNG = np.random.default_rng(0)
UNEVEN_K = np.array([50, 1, 1, 0.02, 1, 1, 1, 0], np.float32)  # channels, the last always 0
# A graph with two layers that share an input, like query and key, followed by a third layer.
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


def ranges_of(model, tmp_path, calls, find=find_ranges):
    onnx.save(model, tmp_path / "plain.onnx")
    layers = linear_layers(model.graph)
    return find(tmp_path / "plain.onnx", layers, [{"x": x} for x in calls], NullProgress())


def group(model, tmp_path, x):
    """Quantize the layers of a graph in groups, calibrated with one input."""
    moments = ranges_of(model, tmp_path, [x], find_moments)
    quantize_grouped(model, round_groups(model.graph, linear_layers(model.graph), moments))


def test_dynamic_scales_are_per_token():
    model, x = small_graph(), tokens(2, 3)
    plain = run_graph(model, x)
    quantize_dynamic(model, linear_layers(model.graph), largest_weight())
    found = run_graph(model, x)
    assert 0 < np.abs(found - plain).max() < 0.05 * np.abs(plain).max()
    loud = np.concatenate([x, 1000 * tokens(2, 3)])
    np.testing.assert_array_equal(run_graph(model, loud)[:2], found)


@pytest.mark.parametrize("unsigned", [False, True])
def test_static_scales_handle_channels_of_very_different_size(tmp_path, unsigned):
    model, x = small_graph(), tokens(8, 16)
    plain = run_graph(model, x)
    ranges = ranges_of(model, tmp_path, [x])
    quantize_static(
        model, linear_layers(model.graph), ranges, unsigned=unsigned, largest=largest_weight()
    )
    found = run_graph(model, x)
    assert 0 < np.abs(found - plain).mean() < 0.02 * np.abs(plain).mean()


@pytest.mark.parametrize("unsigned", [False, True])
def test_the_mean_of_a_channel_is_not_rounded(tmp_path, unsigned):
    model, spread = small_graph(), tokens(8, 16)
    far = spread + np.array([0, 40, -30, 1, 0, 0, 20, 0], np.float32)
    layers, largest = linear_layers(model.graph), largest_weight()
    errors = []
    for x in (spread, far):
        model = small_graph()
        plain = run_graph(model, x)
        ranges = ranges_of(model, tmp_path, [x])
        quantize_static(model, layers[:2], ranges, unsigned=unsigned, largest=largest)
        errors.append(np.abs(run_graph(model, x) - plain).mean())
    assert 0 < errors[1] < 1.5 * errors[0]


def wide_graph(weights):
    node = helper.make_node("MatMul", ["x", "A"], ["logits"], name="/model/dense/MatMul")
    graph = helper.make_graph(
        [node],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "T", len(weights)])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "A")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_grouped_weights_have_a_scale_per_column_and_group(tmp_path):
    weights = RNG.normal(size=(2 * GROUP, 6)).astype(np.float32)
    weights[:GROUP] *= 100  # with a scale per column, the second half would have a few steps
    x = RNG.normal(size=(4, 8, 2 * GROUP)).astype(np.float32)
    x[..., :GROUP] = 0
    model = wide_graph(weights)
    group(model, tmp_path, x + 1)
    (integers,) = (one for one in model.graph.initializer if one.data_type == TensorProto.INT8)
    assert tuple(integers.dims) == (2, GROUP, 6)
    expected = x @ weights
    found = run_graph(model, x)  # onnxruntime does not round the inputs
    assert 0 < np.abs(found - expected).max() < 0.01 * np.abs(expected).max()


def test_a_channel_that_is_large_in_its_group_does_not_round_the_others_away(tmp_path):
    weights = RNG.normal(size=(GROUP, 6)).astype(np.float32)
    x = RNG.normal(size=(16, 8, GROUP)).astype(np.float32)
    x[..., 3] *= 1000
    weights[3] /= 1000
    model = wide_graph(weights)
    expected = run_graph(model, x)
    group(model, tmp_path, x)
    smooth = next(node.output[0] for node in model.graph.node if node.op_type == "Mul")
    model.graph.output.append(helper.make_tensor_value_info(smooth, TensorProto.FLOAT, None))
    session = ort.InferenceSession(model.SerializeToString())
    found, inputs = session.run(None, {"x": x})
    assert np.abs(inputs).mean(axis=(0, 1)).max() < 4 * np.abs(inputs).mean()
    assert 0 < np.abs(found - expected).mean() < 0.01 * np.abs(expected).mean()


def test_layers_without_whole_groups_of_inputs_are_not_grouped():
    layers = linear_layers(wide_graph(np.ones((2 * GROUP, 6), np.float32)).graph)
    assert with_whole_groups(wide_graph(np.ones((2 * GROUP, 6), np.float32)).graph, layers)
    odd = wide_graph(np.ones((GROUP + 8, 6), np.float32)).graph
    assert with_whole_groups(odd, linear_layers(odd)) == ()


def test_other_layers_are_unchanged():
    model, x = small_graph(), tokens(2, 3)
    plain = run_graph(model, x)
    quantize_static(model, [], {}, unsigned=True)
    np.testing.assert_array_equal(run_graph(model, x), plain)
    quantize_dynamic(model, linear_layers(model.graph)[:1])
    assert [layer.weight for layer in linear_layers(model.graph)] == ["B", "C"]


def table_graph(vectors):
    node = helper.make_node("Gather", ["words", "x"], ["logits"])
    graph = helper.make_graph(
        [node],
        "table",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["B", "T"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(vectors, "words")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_large_embedding_table_is_stored_as_int8_with_a_scale_per_vector():
    vectors = (RNG.normal(size=(2000, 8)) * np.logspace(-3, 3, 2000)[:, None]).astype(np.float32)
    model = table_graph(vectors)
    plain_size = model.ByteSize()
    quantize_embeddings(model)
    assert model.ByteSize() < 0.4 * plain_size
    found = run_graph(model, np.arange(2000)[None])[0]
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    assert 1e-3 < (np.abs(found - vectors) / largest).max() < 1 / 127


def test_a_small_table_stays_in_float32():
    vectors = RNG.normal(size=(10, 8)).astype(np.float32)
    model = table_graph(vectors)
    before = model.SerializeToString()
    quantize_embeddings(model)
    assert model.SerializeToString() == before


def test_a_layer_that_shares_an_input_is_quantized_from_the_same_integers():
    model = small_graph()
    quantize_dynamic(model, linear_layers(model.graph))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MatMulInteger") == 3
    assert kinds.count("QuantizeLinear") == 2  # of x and of the sum


def test_a_writer_adds_each_node_and_constant_once():
    writer = GraphWriter()
    for _ in range(2):
        assert writer.constant("one", np.float32(1)) == "one"
        assert writer.node("Neg", ["one"], "minus one") == "minus one"
    assert list(writer.constants) == ["one"]
    assert [node.op_type for node in writer.nodes] == ["Neg"]


def test_a_new_tensor_does_not_have_the_name_of_a_module():
    assert (
        tensor_name("/model/dense/MatMul_output_0", "scale") == "model.dense.MatMul_output_0:scale"
    )
