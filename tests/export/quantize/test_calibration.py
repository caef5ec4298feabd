"""Calibration on a small graph: which layers there are, and the ranges of their inputs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipework.export.quantize.calibration import (
    LinearLayer,
    find_moments,
    find_ranges,
    group_by_shared_input,
    linear_layers,
    matmul_nodes,
    moment_passes,
)
from pipework.progress import NullProgress

RNG = np.random.default_rng(0)


def tokens(batch, length):
    return RNG.normal(size=(batch, length, 4)).astype(np.float32)


def small_graph():
    """Return query and key, which read the same input, a product of both, and a shared layer."""
    matrices = {"A": (4, 6), "B": (4, 6), "C": (6, 6)}
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["a"], name="/model/block/query/MatMul"),
        helper.make_node("MatMul", ["x", "B"], ["b"], name="/model/block/key/MatMul"),
        helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["scores"], name="/model/block/MatMul"),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("MatMul", ["sum", "C"], ["c"], name="/model/block/dense/MatMul"),
        helper.make_node("MatMul", ["c", "C"], ["d"], name="/model/block/dense_1/MatMul"),
        helper.make_node("MatMul", ["scores", "d"], ["logits"], name="/model/block/MatMul_1"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "T", 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(RNG.normal(size=shape).astype(np.float32), name)
            for name, shape in matrices.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def path(tmp_path):
    onnx.save(small_graph(), tmp_path / "plain.onnx")
    return tmp_path / "plain.onnx"


class Counting(NullProgress):
    """Counts finished units."""

    done = 0

    def advance(self, count, figures=None):
        assert figures is None
        self.done += count


def test_layers_are_named_by_module_and_have_all_their_inputs():
    layers = linear_layers(small_graph().graph)
    assert layers == (
        LinearLayer(name="block.query", weight="A", inputs=("x",)),
        LinearLayer(name="block.key", weight="B", inputs=("x",)),
        LinearLayer(name="block.dense", weight="C", inputs=("sum", "c")),  # a shared layer
    )


def test_layers_that_share_an_input_are_in_one_pass(path, monkeypatch):
    graph = onnx.load(path).graph
    layers = linear_layers(graph)
    assert [[one.weight for one in part] for part in moment_passes(graph, layers)] == [
        [one.weight for group in group_by_shared_input(layers) for one in group]
    ]
    monkeypatch.setattr("pipework.export.quantize.calibration.MOMENT_BYTES", 1)
    assert moment_passes(graph, layers) == group_by_shared_input(layers)


def test_products_of_two_computed_tensors_are_no_layers():
    names = [node.name for node in matmul_nodes(small_graph().graph)]
    assert len(names) == 4
    assert not [name for name in names if "block/MatMul" in name]


def test_layers_are_grouped_by_shared_inputs_also_through_another_layer():
    def layer(name, *inputs):
        return LinearLayer(name=name, weight=name, inputs=inputs)

    given = [layer("a", "x"), layer("b", "y"), layer("c", "z"), layer("d", "x", "y")]
    groups = group_by_shared_input(given)
    assert [[one.name for one in group] for group in groups] == [["c"], ["a", "b", "d"]]


def test_a_range_is_the_lowest_highest_and_mean_value_of_all_calls_by_channel(path):
    calls = [tokens(2, 3), tokens(1, 5)]
    progress = Counting()
    layers = linear_layers(onnx.load(path).graph)
    ranges = find_ranges(path, layers, [{"x": x} for x in calls], progress)
    tokens_SK = np.concatenate([x.reshape(-1, 4) for x in calls])
    np.testing.assert_array_equal(ranges["x"][:2], [tokens_SK.min(axis=0), tokens_SK.max(axis=0)])
    means_K = [x.mean(axis=(0, 1)) for x in calls]
    np.testing.assert_allclose(ranges["x"][2], np.mean(means_K, axis=0), rtol=1e-5)
    moments = find_moments(path, layers, [{"x": x} for x in calls], NullProgress())
    products_KK = [np.einsum("btk,btl->kl", x, x) for x in calls]
    np.testing.assert_allclose(moments["x"], np.sum(products_KK, axis=0), rtol=1e-4, atol=1e-4)
    assert moments.keys() == ranges.keys() == {"x", "sum", "c"}
    assert ranges["c"].shape == (3, 6)
    assert progress.done == 2
