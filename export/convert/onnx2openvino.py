"""An ONNX graph becomes an OpenVINO model: a .xml file with its weights in a .bin beside it."""

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13

from pipework.run_folder.engine_record import EngineFormat, Precision
from pipework.serve.engines.openvino import SAID_AT, has_bf16

EACH_TOKEN = frozenset(
    {"attention_mask", "input_ids", "position_ids", "segment_ids", "token_type_ids"}
)


def beside_int8(format_: EngineFormat) -> Precision:
    """Return what is tried first for all that is not int8 in an int8 engine made here.

    bf16 where OpenVINO and the processor have it: int8 takes away far more digits.
    """
    bf16 = format_ is EngineFormat.OPENVINO and has_bf16()
    return Precision.BF16 if bf16 else Precision.FP32


def onnx_to_openvino(graph: Path, out: Path, computed: Precision) -> None:
    """Write `out`, which ends in .xml; the weights keep the precision that they have.

    Read by the core and not by OpenVINO's `convert_model`, which gives the same model and sends
    a report of its use to its makers.

    Args:
        graph: the ONNX graph.
        out: says what it is computed in where its graph does not say int8.
        computed: that, bf16 or fp32.
    """
    model = ov.Core().read_model(graph)
    _plain_shapes(model)
    _whole_rows(model)
    model.set_rt_info("bf16" if computed is Precision.BF16 else "f32", SAID_AT)
    ov.save_model(model, out, compress_to_fp16=False)


def _plain_shapes(model: ov.Model) -> None:
    """Say by constants what the reshapes of a model keep, where shapes are computed for them.

    Exporters write a shape out of sizes that they ask for, `[size(0), size(1), 12, 32]`, which the
    runtime computes for each call, and waits for; where a size stays what it was, `[0, 0, 12, 32]`
    says the same
    (https://docs.openvino.ai/2025/documentation/openvino-ir-format/operation-sets/operation-specs/shape/reshape-1.html).
    Which do is found by the symbols of dimensions, which the runtime hands on from the inputs: all
    that hold a number for each token have the same two.

    Args:
        model: changed in place; its answers stay.
    """
    tokens = (ov.Symbol(), ov.Symbol())
    for one in model.inputs:
        known = tokens if one.get_any_name() in EACH_TOKEN else ()
        shape = one.get_partial_shape()
        one.get_node().set_partial_shape(_named(shape, known))
    model.validate_nodes_and_infer_types()
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Reshape":
            _say_plainly(node)
    model.validate_nodes_and_infer_types()


def _named(shape: ov.PartialShape, known: tuple[ov.Symbol, ...]) -> ov.PartialShape:
    dimensions = [shape[place] for place in range(len(shape))]
    for place, dimension in enumerate(dimensions):
        if dimension.is_dynamic:
            dimension.set_symbol(known[place] if place < len(known) else ov.Symbol())
    return ov.PartialShape(dimensions)


def _say_plainly(node: ov.Node) -> None:
    given, made = node.input_value(0).get_partial_shape(), node.get_output_partial_shape(0)
    if node.input_value(1).get_node().get_type_name() == "Constant" or made.rank.is_dynamic:
        return
    kept = node.get_attributes()["special_zero"] and given.rank.is_static
    plain = []
    for place in range(len(made)):
        if made[place].is_static:
            plain.append(made[place].get_length())
        elif kept and place < len(given) and _same(given[place], made[place]):
            plain.append(0)
        else:
            plain.append(-1)
    if plain.count(-1) <= 1:
        node.input(1).replace_source_output(opset13.constant(np.array(plain, np.int64)).output(0))


def _same(one: ov.Dimension, other: ov.Dimension) -> bool:
    named = one.has_symbol() and other.has_symbol()
    return bool(named and one.get_symbol() == other.get_symbol())


def _whole_rows(model: ov.Model) -> None:
    """Have products read upright what a model lays down for them, as the keys of attention.

    Exporters move the keys of [rows, tokens, heads, width] to [rows, heads, width, tokens], number
    by number. Moved to [rows, heads, tokens, width] they stay in whole rows, of which the product
    makes what it needs anyway: 1.02 times as many texts a second with one thread, 1.00 to 1.005
    with two (int8 and bf16, MiniLM), and the same answers bit for bit.

    Args:
        model: changed in place; its answers stay.
    """
    for node in model.get_ordered_ops():
        moved = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else None
        order = _order(moved) if moved and moved.get_type_name() == "Transpose" else []
        if moved and len(order) > 1 and order[-2] == len(order) - 1:
            order[-2:] = reversed(order[-2:])
            rows = opset13.transpose(moved.input_value(0), np.array(order))
            lying = node.get_attributes()
            product = opset13.matmul(
                node.input_value(0), rows, lying["transpose_a"], not lying["transpose_b"]
            )
            product.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(product.output(0))
    model.validate_nodes_and_infer_types()


def _order(transpose: ov.Node) -> list[int]:
    """Return the order of a transpose; none where it is computed, or not said."""
    given = transpose.input_value(1).get_node()
    return given.get_data().tolist() if given.get_type_name() == "Constant" else []
