from pathlib import Path

import numpy as np
import onnx
import openvino as ov
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipework.export.convert.converters import converter_of
from pipework.export.convert.onnx2openvino import onnx_to_openvino
from pipework.export.quantize.calibration import linear_layers
from pipework.export.quantize.qdq_graph import quantize_grouped, round_groups
from pipework.machine import multiplies_groups
from pipework.run_folder.engine_record import Precision
from pipework.serve.engines.openvino import GROUP, HINT, PRECISION_PATH, shared_core

SIZES = ("rows", "width")


def graph(
    path: Path, *pattern: str | int, of: str = "segment_ids", allow_zero: bool = False
) -> Path:
    """Write a graph that reshapes states [R, T, 6] to sizes of the input `of` and constants."""
    constants = {"table": np.arange(60, dtype=np.float32).reshape(10, 6)}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["states"]),
        helper.make_node("Shape", [of], ["size"]),
    ]
    parts = []
    for number, part in enumerate(pattern):
        name = f"part{number}"
        parts.append(name)
        where = [SIZES.index(part)] if isinstance(part, str) else [part]
        constants[f"{name}:given"] = np.array(where, np.int64)
        if isinstance(part, str):
            nodes.append(helper.make_node("Gather", ["size", f"{name}:given"], [name]))
        else:
            nodes.append(helper.make_node("Identity", [f"{name}:given"], [name]))
    nodes.append(helper.make_node("Concat", parts, ["shape"], axis=0))
    nodes.append(
        helper.make_node("Reshape", ["states", "shape"], ["logits"], allowzero=int(allow_zero))
    )
    graph_proto = helper.make_graph(
        nodes,
        "reshaped",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, [f"R of {name}", f"T of {name}"])
            for name in dict.fromkeys(("input_ids", of))
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def shape_given(model: ov.Model) -> list[int] | None:
    """Return the constant target shape of the model's reshape, None if it is computed."""
    (reshape,) = (one for one in model.get_ordered_ops() if one.get_type_name() == "Reshape")
    source = reshape.input_value(1).get_node()
    return source.get_data().tolist() if source.get_type_name() == "Constant" else None


@pytest.mark.parametrize(
    ("pattern", "target"),
    [
        (("rows", "width", 2, 3), [0, 0, 2, 3]),
        (("rows", "width", -1, 3), [0, 0, 2, 3]),
        (("rows", -1, 6), [0, 0, 6]),
        ((-1, 6), [-1, 6]),
        ((-1, "width"), [-1, 0]),
        ((1, "rows", -1), None),  # rows at another axis, and the rest is unknown
        (("width", "rows", 6), None),  # neither dimension is at its old axis
    ],
)
def test_reshapes_use_constants_for_unchanged_dimensions(
    tmp_path: Path, pattern: tuple[str | int, ...], target: list[int] | None
) -> None:
    source, out = graph(tmp_path / "graph.onnx", *pattern), tmp_path / "model.xml"
    onnx_to_openvino(source, out, Precision.FP32)
    core = shared_core()
    model = core.read_model(out)
    assert shape_given(model) == target
    before, after = (core.compile_model(one, "CPU") for one in (core.read_model(source), model))
    for rows, width in ((1, 1), (2, 3), (5, 2)):
        ids = np.random.default_rng(0).integers(0, 10, (rows, width))
        feed = {"input_ids": ids, "segment_ids": ids}
        np.testing.assert_array_equal(before(feed)["logits"], after(feed)["logits"])


def test_dimensions_of_other_inputs_are_not_token_dimensions(tmp_path: Path) -> None:
    source = graph(tmp_path / "graph.onnx", "rows", "width", -1, of="text_index")
    onnx_to_openvino(source, tmp_path / "model.xml", Precision.FP32)
    model = shared_core().read_model(tmp_path / "model.xml")
    assert shape_given(model) is None
    feed = {"input_ids": np.zeros((2, 6), np.int64), "text_index": np.zeros((4, 1), np.int64)}
    assert shared_core().compile_model(model, "CPU")(feed)["logits"].shape == (4, 1, 18)


def test_allowzero_reshapes_are_not_rewritten(tmp_path: Path) -> None:
    source = graph(tmp_path / "graph.onnx", "rows", "width", 2, 3, allow_zero=True)
    onnx_to_openvino(source, tmp_path / "model.xml", Precision.FP32)
    assert shape_given(shared_core().read_model(tmp_path / "model.xml")) is None


@pytest.mark.parametrize(
    ("computed", "recorded"), [(Precision.FP32, "f32"), (Precision.BF16, "bf16")]
)
def test_a_model_records_its_precision(tmp_path: Path, computed: Precision, recorded: str) -> None:
    source, out = graph(tmp_path / "graph.onnx", -1, 6), tmp_path / "model.xml"
    onnx_to_openvino(source, out, computed)
    assert shared_core().read_model(out).get_rt_info(PRECISION_PATH).value == recorded


@pytest.mark.parametrize(
    ("found", "fallback"),
    [(["FP32", "BF16", "INT8"], Precision.BF16), (["FP32", "INT8"], Precision.FP32)],
)
def test_the_int8_fallback_precision_depends_on_the_runtime(
    monkeypatch: pytest.MonkeyPatch, found: list[str], fallback: Precision
) -> None:
    monkeypatch.setattr(ov.Core, "get_property", lambda *_: found)
    assert converter_of("openvino").fallback_precision() is fallback
    assert converter_of("onnx").fallback_precision() is Precision.FP32


@pytest.mark.parametrize(
    ("order", "rows"),
    [
        ([0, 2, 3, 1], [0, 2, 1, 3]),  # the keys, as exporters move them
        ([0, 2, 1, 3], [0, 2, 1, 3]),  # the values, which are in whole rows already
        ([3, 2, 0, 1], [3, 2, 0, 1]),  # number by number either way
    ],
)
def test_transpositions_copy_contiguous_vectors(
    tmp_path: Path, order: list[int], rows: list[int]
) -> None:
    shape = [2, 3, 4, 5]
    moved = [shape[place] for place in order]
    random = np.random.default_rng(0)
    queries = random.standard_normal((*moved[:2], 7, moved[2])).astype(np.float32)
    graph_proto = helper.make_graph(
        [
            helper.make_node("Transpose", ["keys"], ["lying"], perm=order),
            helper.make_node("MatMul", ["queries", "lying"], ["logits"], name="scores"),
        ],
        "scores",
        [helper.make_tensor_value_info("keys", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(queries, "queries")],
    )
    source, out = tmp_path / "graph.onnx", tmp_path / "model.xml"
    onnx.save(helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)]), source)
    onnx_to_openvino(source, out, Precision.FP32)
    model = shared_core().read_model(out)
    nodes = {one.get_type_name(): one for one in model.get_ordered_ops()}
    assert nodes["Transpose"].input_value(1).get_node().get_data().tolist() == rows
    assert nodes["MatMul"].get_attributes()["transpose_b"] == (rows != order)
    assert nodes["MatMul"].get_friendly_name() == "logits"
    keys = random.standard_normal(shape).astype(np.float32)
    expected = queries @ keys.transpose(order)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    found = shared_core().compile_model(model, "CPU", exact)({"keys": keys})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not multiplies_groups(), reason="this processor does not multiply groups")
def test_the_inputs_of_grouped_layers_are_rounded_in_groups_of_a_token(tmp_path):
    rng = np.random.default_rng(0)
    weights_KM = rng.normal(size=(2 * GROUP, 64)).astype(np.float32)
    x = rng.normal(size=(4, 16, 2 * GROUP)).astype(np.float32)
    x[..., GROUP:] *= 50
    inputs, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "T", width])
        for name, width in (("x", 2 * GROUP), ("logits", 64))
    )
    node = helper.make_node("MatMul", ["x", "A"], ["logits"], name="/model/dense/MatMul")
    constants = [numpy_helper.from_array(weights_KM, "A")]
    graph_proto = helper.make_graph([node], "dense", [inputs], [outputs], constants)
    model = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)])
    moments = {"x": np.eye(2 * GROUP, dtype=np.float32)}
    rounded = round_groups(model.graph, linear_layers(model.graph), moments)
    quantize_grouped(model, rounded)
    onnx.save(model, tmp_path / "dense.onnx")
    onnx_to_openvino(tmp_path / "dense.onnx", tmp_path / "model.xml", Precision.FP32)
    options = {HINT: "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = shared_core().compile_model(tmp_path / "model.xml", "CPU", options)
    stored_KM = (rounded["A"].integers_JGM * rounded["A"].scales_J1M).reshape(weights_KM.shape)
    smooth = (x * rounded["A"].inverse_K).reshape(4, 16, 2, GROUP)
    steps = np.abs(smooth).max(axis=-1, keepdims=True) / 127
    expected = (np.round(smooth / steps) * steps).reshape(x.shape) @ stored_KM
    found = compiled(x)[0]
    size = np.sqrt(np.square(expected).mean())
    assert np.sqrt(np.square(found - expected).mean()) < 1e-4 * size
    exact = smooth.reshape(x.shape) @ stored_KM
    assert np.sqrt(np.square(found - exact).mean()) > 1e-3 * size
