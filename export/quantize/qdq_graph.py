"""A graph whose linear layers multiply 8-bit integers.

Weights are scaled by the column, symmetrically. Inputs have a scale

* for each token, found when it is there (dynamic). A scale for the whole batch, which is what
  onnxruntime's own quantiser writes, makes an answer depend on who shares the batch; and
* for each tensor, found before (static, as QuantizeLinear and DequantizeLinear). First the
  channels are brought nearer to one another by factors that move into the weights (SmoothQuant,
  Xiao et al. 2023, arXiv:2211.10438).

Shapes: K inputs and M outputs of a layer.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.cpu import sums_int8
from pipework.export.quantize.calibration import Linear, Ranges, bound_together

LARGEST = 127  # symmetric: -128 is not used
MIDDLE = 128  # of uint8
TABLE = 1000  # vectors of a table that is worth it
# How much of the difference between channels moves into the weights. Measured on one run (MRPC):
# 0.5 changed more answers than nothing at all, and 0.85 to 1 were alike.
SMOOTHING = 0.95
TINY = np.float32(1e-9)


@dataclass(kw_only=True)
class Writer:
    """Nodes and constants of the graph that is being written."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        """Add a constant, once, and return its name."""
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        output: str,
        name: str = "",
        **attributes: int | Sequence[int],
    ) -> str:
        """Add a node, once, and return the name of its output."""
        if output not in self.made:
            self.made.add(output)
            node = helper.make_node(kind, inputs, [output], name=name)
            node.attribute.extend(helper.make_attribute(*one) for one in attributes.items())
            self.nodes.append(node)
        return output


def largest_weight() -> int:
    """Return the largest weight that this processor multiplies rightly.

    Without the instructions that add products of 8 bits in 32, they are added in pairs in 16, where
    they saturate unless weights have 7 bits
    (https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html).
    """
    return LARGEST if sums_int8() else LARGEST // 2


def dynamic(model: onnx.ModelProto, layers: Sequence[Linear], largest: int = LARGEST) -> None:
    """Rewrite layers so that each token gets its scale when it is there.

    Args:
        model: a float32 graph; changed in place.
        layers: those to rewrite.
        largest: of the integers of a weight.
    """
    weights = _weights(model.graph, layers)
    writer = Writer()
    zero = writer.constant("int8:zero", np.int8(0))
    middle = writer.constant("int8:middle", np.uint8(MIDDLE))
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            writer.nodes.append(node)
            continue
        (given, weight), made = node.input, node.output[0]
        integers, columns = _by_column(writer, weight, weights[weight], largest)
        quantised, tokens = _by_token(writer, given, middle)
        sums = writer.node(
            "MatMulInteger", [quantised, integers, middle, zero], inner(made, "int32")
        )
        sums = writer.node("Cast", [sums], inner(made, "float"), to=TensorProto.FLOAT)
        # One scale after the other: their product is a pattern that onnxruntime (1.31) fuses into
        # MatMulIntegerToFloat, which takes the first token's scale for all.
        sums = writer.node("Mul", [sums, columns], inner(made, "columns"))
        writer.node("Mul", [sums, tokens], made, name=node.name)
    _put(model.graph, writer, weights.keys())


def _by_token(writer: Writer, given: str, middle: str) -> tuple[str, str]:
    """Write a tensor as uint8 and the scale of each token, and return the names of both."""
    part = writer.constant("int8:1/127", np.float32(1 / LARGEST))
    one = writer.constant("int8:one", np.float32(1))
    tiny = writer.constant("int8:tiny", TINY)
    magnitudes = writer.node("Abs", [given], inner(given, "abs"))
    reach = writer.node("ReduceMax", [magnitudes], inner(given, "reach"), axes=[-1], keepdims=1)
    reach = writer.node("Max", [reach, tiny], inner(given, "above0"))
    scale = writer.node("Mul", [reach, part], inner(given, "scale"))
    scaled = writer.node("Div", [given, scale], inner(given, "scaled"))
    return writer.node("QuantizeLinear", [scaled, one, middle], inner(given, "int8")), scale


def static(
    model: onnx.ModelProto,
    layers: Sequence[Linear],
    ranges: Ranges,
    *,
    unsigned: bool,
    largest: int = LARGEST,
) -> None:
    """Rewrite layers as products of tensors that are quantised with known scales.

    Args:
        model: a float32 graph; changed in place.
        layers: those to rewrite.
        ranges: of their inputs.
        unsigned: whether inputs are uint8 around 128, which onnxruntime is fast for; else int8,
            which OpenVINO is fast for and TensorRT demands.
        largest: of the integers of a weight.
    """
    weights = _weights(model.graph, layers)
    factors = _factors(layers, ranges, weights)
    writer = Writer()
    zero = writer.constant("int8:zero", np.uint8(MIDDLE) if unsigned else np.int8(0))
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            writer.nodes.append(node)
            continue
        (given, weight), made = node.input, node.output[0]
        factor_K = factors[weight]
        inverse = writer.constant(inner(given, "1/factor"), 1 / factor_K)
        smooth = writer.node("Mul", [given, inverse], inner(given, "smooth"))
        reach = (ranges[given] / factor_K).max() + TINY
        scale = writer.constant(inner(given, "scale"), np.float32(reach / LARGEST))
        there = writer.node("QuantizeLinear", [smooth, scale, zero], inner(given, "int8"))
        about = writer.node("DequantizeLinear", [there, scale, zero], inner(given, "about"))
        matrix_KM = weights[weight] * factor_K[:, None]
        matrix = _dequantised(writer, weight, matrix_KM, largest)
        writer.node("MatMul", [about, matrix], made, name=node.name)
    _put(model.graph, writer, weights.keys())


def tables(model: onnx.ModelProto) -> None:
    """Store large tables of vectors, as of words, in int8, each vector with a scale of its own.

    They are most of a small model's weights. What is looked up becomes float32 again, and is
    10 times nearer to what it was than what int8 layers answer (measured on MRPC and SST-2).
    """
    found = {one.name: one for one in model.graph.initializer if _is_table(one)}
    readers = [node for node in model.graph.node for name in node.input if name in found]
    others = {name for node in readers if node.op_type != "Gather" for name in node.input}
    writer = Writer()
    for node in model.graph.node:
        if node.op_type != "Gather" or node.input[0] not in found.keys() - others:
            writer.nodes.append(node)
            continue
        (table, ids), made = node.input, node.output[0]
        vectors_VK = np.asarray(numpy_helper.to_array(found[table]), np.float32)
        scale_V1 = (np.abs(vectors_VK).max(axis=1, keepdims=True) + TINY) / LARGEST
        integers_VK = np.round(vectors_VK / scale_V1).astype(np.int8)
        integers = writer.constant(inner(table, "int8"), integers_VK)
        scales = writer.constant(inner(table, "scales"), scale_V1.astype(np.float32))
        there = writer.node("Gather", [integers, ids], inner(made, "int8"))
        there = writer.node("Cast", [there], inner(made, "float"), to=TensorProto.FLOAT)
        scale = writer.node("Gather", [scales, ids], inner(made, "scale"))
        writer.node("Mul", [there, scale], made, name=node.name)
    _put(model.graph, writer, found.keys() - others)


def inner(name: str, what: str) -> str:
    """Return a name for a tensor between two of the float32 graph.

    Without slashes, since those say which module a tensor is the output of.
    """
    return f"{name.strip('/').replace('/', '.')}:{what}"


def _dequantised(writer: Writer, name: str, matrix_KM: NDArray[np.float32], largest: int) -> str:
    """Write a matrix as int8 and as what it is again in float32, and return the name of that."""
    integers, columns = _by_column(writer, name, matrix_KM, largest)
    zeros = writer.constant(inner(name, "zeros"), np.zeros(matrix_KM.shape[1], np.int8))
    return writer.node("DequantizeLinear", [integers, columns, zeros], inner(name, "about"), axis=1)


def _is_table(one: onnx.TensorProto) -> bool:
    return len(one.dims) == 2 and one.dims[0] >= TABLE and one.data_type == TensorProto.FLOAT  # noqa: PLR2004


def _factors(
    layers: Sequence[Linear], ranges: Ranges, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return what each channel is divided by, float32 [K], by the name of the weight."""
    factors: dict[str, NDArray[np.float32]] = {}
    for group in bound_together(layers):
        reach_K = np.max([ranges[name] for layer in group for name in layer.inputs], axis=0)
        weight_K = np.max([np.abs(weights[layer.weight]).max(axis=1) for layer in group], axis=0)
        # A channel that is always 0 must not get a factor of 0.
        reach_K, weight_K = (
            np.maximum(one, 1e-5 * one.max() + TINY) for one in (reach_K, weight_K)
        )
        factor_K = reach_K**SMOOTHING / weight_K ** (1 - SMOOTHING)
        factors |= {layer.weight: factor_K.astype(np.float32) for layer in group}
    return factors


def _by_column(
    writer: Writer, name: str, matrix_KM: NDArray[np.float32], largest: int
) -> tuple[str, str]:
    """Write a matrix as int8 and the scales of its columns, and return the names of both."""
    scale_M = (np.abs(matrix_KM).max(axis=0) + TINY) / largest
    integers_KM = np.round(matrix_KM / scale_M).astype(np.int8)
    return (
        writer.constant(inner(name, "int8"), integers_KM),
        writer.constant(inner(name, "columns"), scale_M.astype(np.float32)),
    )


def _weights(graph: onnx.GraphProto, layers: Sequence[Linear]) -> dict[str, NDArray[np.float32]]:
    names = {layer.weight for layer in layers}
    return {
        one.name: np.asarray(numpy_helper.to_array(one), np.float32)
        for one in graph.initializer
        if one.name in names
    }


def _put(graph: onnx.GraphProto, writer: Writer, gone: AbstractSet[str]) -> None:
    kept = [one for one in graph.initializer if one.name not in gone]
    del graph.initializer[:], graph.node[:], graph.value_info[:]
    graph.initializer.extend((*kept, *writer.constants.values()))
    graph.node.extend(writer.nodes)
