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

from export.linears import Linear, bound_together
from export.ranges import Ranges

LARGEST = 127  # symmetric: -128 is not used
# How much of the difference between channels moves into the weights. Measured on three runs: 0.5
# is worse than nothing, and 0.85 to 1 are alike.
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

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **more: object) -> str:
        """Add a node, once, and return the name of its first output."""
        if outputs[0] not in self.made:
            self.made.add(outputs[0])
            self.nodes.append(helper.make_node(kind, inputs, outputs, **more))
        return outputs[0]


def dynamic(model: onnx.ModelProto, layers: Sequence[Linear], largest: int = LARGEST) -> None:
    """Rewrite layers so that each token gets its scale when it is there.

    Args:
        model: a float32 graph; changed in place.
        layers: those to rewrite.
        largest: of the integers of a weight.
    """
    weights = _weights(model.graph, layers)
    names = {layer.weight for layer in layers}
    writer = Writer()
    zero = writer.constant("int8:zero", np.int8(0))
    middle = writer.constant("int8:middle", np.uint8(128))
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in names:
            writer.nodes.append(node)
            continue
        (given, weight), made = node.input, node.output[0]
        integers, scale = _by_column(writer, weight, weights[weight], largest)
        token_scale = _token_scales(writer, given)
        quantised = f"{given}:int8"
        writer.node("MatMulInteger", [quantised, integers, middle, zero], [f"{made}:int32"])
        writer.node("Cast", [f"{made}:int32"], [f"{made}:float"], to=TensorProto.FLOAT)
        writer.node("Mul", [token_scale, scale], [f"{made}:scale"])
        writer.node("Mul", [f"{made}:float", f"{made}:scale"], [made], name=node.name)
    _put(model.graph, writer, names)


def _token_scales(writer: Writer, given: str) -> str:
    """Write the integers of a tensor, uint8 around 128, and return the scale of each token."""
    largest = writer.constant("int8:1/127", np.float32(1 / LARGEST))
    one = writer.constant("int8:one", np.float32(1))
    tiny = writer.constant("int8:tiny", TINY)
    writer.node("Abs", [given], [f"{given}:abs"])
    writer.node("ReduceMax", [f"{given}:abs"], [f"{given}:reach"], axes=[-1], keepdims=1)
    writer.node("Max", [f"{given}:reach", tiny], [f"{given}:above0"])
    scale = writer.node("Mul", [f"{given}:above0", largest], [f"{given}:scale"])
    writer.node("Div", [given, scale], [f"{given}:scaled"])
    writer.node("QuantizeLinear", [f"{given}:scaled", one, "int8:middle"], [f"{given}:int8"])
    return scale


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
    names = {layer.weight for layer in layers}
    factors = _factors(layers, ranges, weights)
    writer = Writer()
    zero = writer.constant("int8:zero", np.uint8(128) if unsigned else np.int8(0))
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in names:
            writer.nodes.append(node)
            continue
        (given, weight), made = node.input, node.output[0]
        factor_K = factors[weight]
        reach = float((ranges[given] / factor_K).max()) + TINY
        inverse = writer.constant(f"{given}:1/factor", 1 / factor_K)
        scale = writer.constant(f"{given}:scale", np.float32(reach / LARGEST))
        smooth = writer.node("Mul", [given, inverse], [f"{given}:smooth"])
        writer.node("QuantizeLinear", [smooth, scale, zero], [f"{given}:int8"])
        about = writer.node("DequantizeLinear", [f"{given}:int8", scale, zero], [f"{given}:about"])
        matrix_KM = weights[weight] * factor_K[:, None]
        integers, columns = _by_column(writer, weight, matrix_KM, largest)
        writer.constant(f"{weight}:zeros", np.zeros(matrix_KM.shape[1], np.int8))
        writer.node(
            "DequantizeLinear", [integers, columns, f"{weight}:zeros"], [f"{weight}:about"], axis=1
        )
        writer.node("MatMul", [about, f"{weight}:about"], [made], name=node.name)
    _put(model.graph, writer, names)


def _factors(
    layers: Sequence[Linear], ranges: Ranges, weights: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return what each channel is divided by, float32 [K], by the name of the weight."""
    factors = {}
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
        writer.constant(f"{name}:int8", integers_KM),
        writer.constant(f"{name}:columns", scale_M.astype(np.float32)),
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
