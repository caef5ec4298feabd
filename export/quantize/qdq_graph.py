"""Quantize the linear layers of a graph to int8.

Weights are scaled per column, symmetrically. Inputs are scaled

* dynamically, per token. The quantizer of onnxruntime uses a scale per batch, which makes a result
  depend on the other inputs of the batch; or
* statically, per tensor, with calibrated ranges (QuantizeLinear and DequantizeLinear). Factors that
  move into the weights first even out the channels (SmoothQuant, Xiao et al. 2023,
  arXiv:2211.10438), and the mean of each channel is subtracted. Its product with the float32
  weights is added to the output, so rounded weights do not change the mean of the outputs; or
* by group, for OpenVINO: weights have a scale per column and group of K, and the runtime rounds the
  inputs of each token in the same groups. Factors even out the channels first, here halfway and by
  their root mean squares, and rounding errors of weights compensate each other.

Shapes: K inputs and M outputs of a layer, J groups of G inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.export.quantize.calibration import LinearLayer, Moments, Ranges, group_by_shared_input
from pipework.export.quantize.compensated_rounding import compensated_integers, inverse_root
from pipework.machine import sums_int8
from pipework.serve.engines.openvino import GROUP

LARGEST = 127  # symmetric: -128 is not used
ZERO_POINT = 128  # of uint8
MIN_VECTORS = 1000  # smaller tables stay in float32
# Share of the difference between channels that moves into the weights. Measured on one run (MRPC):
# 0.5 changed more labels than no smoothing, and 0.85 to 1 were equally good.
SMOOTHING = 0.95
# The same for groups, with root mean squares: inputs and weights then have similar errors. MiniLM
# on SST-2 and SemEval-2010: 0.6 and 0.7 gave larger errors, no smoothing 1.2 times the error.
GROUP_SMOOTHING = 0.5
TINY = np.float32(1e-9)


@dataclass(kw_only=True)
class GraphWriter:
    """Collects the nodes and constants of a new graph."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)

    def constant(self, name: str, value: NDArray[np.generic] | np.generic) -> str:
        """Add a constant if it is new and return its name."""
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
        """Add a node if it is new and return the name of its output."""
        if output not in self.outputs:
            self.outputs.add(output)
            node = helper.make_node(kind, inputs, [output], name=name)
            node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
            self.nodes.append(node)
        return output


def largest_weight() -> int:
    """Return the largest integer weight that this processor multiplies without saturation."""
    # Processors that do not sum 8-bit products in 32 bits add pairs in 16 bits, which saturate
    # unless weights have 7 bits:
    # https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    return LARGEST if sums_int8() else LARGEST // 2


def quantize_dynamic(
    model: onnx.ModelProto, layers: Sequence[LinearLayer], largest: int = LARGEST
) -> None:
    """Quantize layers with a dynamic scale per token.

    Args:
        model: a float32 graph; changed in place.
        layers: the layers to quantize.
        largest: largest integer of a weight.
    """
    weights = _weights(model.graph, layers)
    writer = GraphWriter()
    zero = writer.constant("int8:zero", np.int8(0))
    middle = writer.constant("int8:middle", np.uint8(ZERO_POINT))
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            writer.nodes.append(node)
            continue
        (source, weight), output = node.input, node.output[0]
        integers, columns = _by_column(writer, weight, weights[weight], largest)
        quantized, tokens = _by_token(writer, source, middle)
        sums = writer.node(
            "MatMulInteger", [quantized, integers, middle, zero], tensor_name(output, "int32")
        )
        sums = writer.node("Cast", [sums], tensor_name(output, "float"), to=TensorProto.FLOAT)
        # Two separate Mul nodes: onnxruntime (1.31) fuses a product of the scales into
        # MatMulIntegerToFloat, which uses the first token's scale for all tokens.
        sums = writer.node("Mul", [sums, columns], tensor_name(output, "columns"))
        writer.node("Mul", [sums, tokens], output, name=node.name)
    _replace(model.graph, writer, weights.keys())


def _by_token(writer: GraphWriter, source: str, middle: str) -> tuple[str, str]:
    """Quantize a tensor to uint8 per token; return the names of the integers and the scales."""
    part = writer.constant("int8:1/127", np.float32(1 / LARGEST))
    unit = writer.constant("int8:one", np.float32(1))
    tiny = writer.constant("int8:tiny", TINY)
    magnitudes = writer.node("Abs", [source], tensor_name(source, "abs"))
    reach = writer.node(
        "ReduceMax", [magnitudes], tensor_name(source, "reach"), axes=[-1], keepdims=1
    )
    reach = writer.node("Max", [reach, tiny], tensor_name(source, "above0"))
    scale = writer.node("Mul", [reach, part], tensor_name(source, "scale"))
    scaled = writer.node("Div", [source, scale], tensor_name(source, "scaled"))
    return writer.node("QuantizeLinear", [scaled, unit, middle], tensor_name(source, "int8")), scale


def quantize_static(
    model: onnx.ModelProto,
    layers: Sequence[LinearLayer],
    ranges: Ranges,
    *,
    unsigned: bool,
    largest: int = LARGEST,
) -> None:
    """Quantize layers with calibrated static scales.

    Args:
        model: a float32 graph; changed in place.
        layers: the layers to quantize.
        ranges: calibrated ranges of their inputs.
        unsigned: whether inputs are uint8 with zero point 128 (fast in onnxruntime), else int8
            (fast in OpenVINO, required by TensorRT).
        largest: largest integer of a weight.
    """
    weights = _weights(model.graph, layers)
    spread = {name: _reach(range_3K) for name, range_3K in ranges.items()}
    factors = _factors(layers, spread, weights, _largest, SMOOTHING)
    writer = GraphWriter()
    zero = writer.constant("int8:zero", np.uint8(ZERO_POINT) if unsigned else np.int8(0))
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            writer.nodes.append(node)
            continue
        (source, weight), output = node.input, node.output[0]
        factor_K = factors[weight]
        mean_K = ranges[source][2]
        offset_M = mean_K @ weights[weight]
        inverse = writer.constant(tensor_name(source, "1/factor"), 1 / factor_K)
        smooth = writer.node("Mul", [source, inverse], tensor_name(source, "smooth"))
        shift = writer.constant(tensor_name(source, "shift"), -mean_K / factor_K)
        shifted = writer.node("Add", [smooth, shift], tensor_name(source, "shifted"))
        reach = (spread[source] / factor_K).max() + TINY
        scale = writer.constant(tensor_name(source, "scale"), np.float32(reach / LARGEST))
        quantized = writer.node(
            "QuantizeLinear", [shifted, scale, zero], tensor_name(source, "int8")
        )
        restored = writer.node(
            "DequantizeLinear", [quantized, scale, zero], tensor_name(source, "about")
        )
        matrix_KM = weights[weight] * factor_K[:, None]
        integers, columns = _by_column(writer, weight, matrix_KM, largest)
        zeros = writer.constant(tensor_name(weight, "zeros"), np.zeros(len(offset_M), np.int8))
        matrix = writer.node(
            "DequantizeLinear", [integers, columns, zeros], tensor_name(weight, "about"), axis=1
        )
        product = tensor_name(output, "product")
        writer.node("MatMul", [restored, matrix], product, name=node.name)
        offset = writer.constant(tensor_name(output, "offset"), offset_M)
        writer.node("Add", [product, offset], output)
    _replace(model.graph, writer, weights.keys())


def with_whole_groups(
    graph: onnx.GraphProto, layers: Sequence[LinearLayer]
) -> tuple[LinearLayer, ...]:
    """Return the layers whose number of inputs is a multiple of `GROUP`."""
    inputs = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    return tuple(layer for layer in layers if inputs[layer.weight] % GROUP == 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedWeights:
    """Weights with a scale per column and group of `GROUP` inputs.

    Attributes:
        inverse_K: the factors of the inputs.
        integers_JGM: the rounded weights.
        scales_J1M: their scales.
    """

    inverse_K: NDArray[np.float32]
    integers_JGM: NDArray[np.int8]
    scales_J1M: NDArray[np.float32]


def round_groups(
    graph: onnx.GraphProto, layers: Sequence[LinearLayer], moments: Moments
) -> dict[str, GroupedWeights]:
    """Round the weights of layers, by their names; see `compensated_rounding`.

    Args:
        graph: a float32 graph.
        layers: layers with whole groups of inputs.
        moments: products of their inputs, see `find_moments`.
    """
    weights = _weights(graph, layers)
    rms = {name: np.sqrt(np.diagonal(moments_KK)) for name, moments_KK in moments.items()}
    factors = _factors(layers, rms, weights, _rms, GROUP_SMOOTHING)
    inverses: dict[tuple[str, ...], NDArray[np.float64]] = {}
    rounded: dict[str, GroupedWeights] = {}
    for layer in layers:
        factor_K = factors[layer.weight]
        if layer.inputs not in inverses:
            products_KK = np.sum([moments[name] for name in layer.inputs], axis=0)
            inverses[layer.inputs] = inverse_root(products_KK / np.outer(factor_K, factor_K))
        matrix_KM = weights[layer.weight] * factor_K[:, None]
        groups_JGM = matrix_KM.reshape(-1, GROUP, matrix_KM.shape[1])
        scales_J1M = (np.abs(groups_JGM).max(axis=1, keepdims=True) + TINY) / LARGEST
        steps_KM = np.repeat(scales_J1M[:, 0], GROUP, axis=0)
        integers_KM = compensated_integers(matrix_KM, steps_KM, inverses[layer.inputs])
        rounded[layer.weight] = GroupedWeights(
            inverse_K=(1 / factor_K).astype(np.float32),
            integers_JGM=integers_KM.reshape(groups_JGM.shape),
            scales_J1M=scales_J1M.astype(np.float32),
        )
    return rounded


def quantize_grouped(model: onnx.ModelProto, weights: Mapping[str, GroupedWeights]) -> None:
    """Store the rounded weights of layers, and divide their inputs by the factors.

    OpenVINO rounds these inputs to int8, with a scale per token and group.

    Args:
        model: a float32 graph; changed in place.
        weights: the rounded weights of the layers to quantize.
    """
    writer = GraphWriter()
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in weights:
            writer.nodes.append(node)
            continue
        source, weight = node.input
        grouped = weights[weight]
        inverse = writer.constant(tensor_name(source, "1/factor"), grouped.inverse_K)
        smooth = writer.node("Mul", [source, inverse], tensor_name(source, "smooth"))
        integers = writer.constant(tensor_name(weight, "int8"), grouped.integers_JGM)
        columns = writer.constant(tensor_name(weight, "columns"), grouped.scales_J1M)
        inputs_outputs = (len(grouped.inverse_K), grouped.integers_JGM.shape[-1])
        shape = writer.constant(tensor_name(weight, "shape"), np.array(inputs_outputs))
        groups = tensor_name(weight, "groups")
        writer.node("Cast", [integers], groups, to=TensorProto.FLOAT)
        about = writer.node("Mul", [groups, columns], tensor_name(weight, "about"))
        matrix = writer.node("Reshape", [about, shape], tensor_name(weight, "matrix"))
        writer.node("MatMul", [smooth, matrix], node.output[0], name=node.name)
    _replace(model.graph, writer, weights.keys())


def quantize_embeddings(model: onnx.ModelProto) -> None:
    """Store large embedding tables in int8, with a scale per vector; lookups return float32."""
    # Embeddings are most of a small model's weights. Their error is a tenth of the error of int8
    # layers (measured on MRPC and SST-2).
    tables = {tensor.name: tensor for tensor in model.graph.initializer if _is_table(tensor)}
    readers = [node for node in model.graph.node for name in node.input if name in tables]
    others = {name for node in readers if node.op_type != "Gather" for name in node.input}
    writer = GraphWriter()
    for node in model.graph.node:
        if node.op_type != "Gather" or node.input[0] not in tables.keys() - others:
            writer.nodes.append(node)
            continue
        (table, ids), output = node.input, node.output[0]
        vectors_VK = np.asarray(numpy_helper.to_array(tables[table]), np.float32)
        scale_V1 = (np.abs(vectors_VK).max(axis=1, keepdims=True) + TINY) / LARGEST
        integers_VK = np.round(vectors_VK / scale_V1).astype(np.int8)
        integers = writer.constant(tensor_name(table, "int8"), integers_VK)
        scales = writer.constant(tensor_name(table, "scales"), scale_V1.astype(np.float32))
        vectors = writer.node("Gather", [integers, ids], tensor_name(output, "int8"))
        vectors = writer.node("Cast", [vectors], tensor_name(output, "float"), to=TensorProto.FLOAT)
        scale = writer.node("Gather", [scales, ids], tensor_name(output, "scale"))
        writer.node("Mul", [vectors, scale], output, name=node.name)
    _replace(model.graph, writer, tables.keys() - others)


def tensor_name(name: str, what: str) -> str:
    """Return a name for a new tensor derived from tensor `name`."""
    # Without slashes: a name with slashes means the output of a module.
    return f"{name.strip('/').replace('/', '.')}:{what}"


def _is_table(tensor: onnx.TensorProto) -> bool:
    matrix = len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT  # noqa: PLR2004
    return matrix and tensor.dims[0] >= MIN_VECTORS


def _factors(
    layers: Sequence[LinearLayer],
    sizes: Mapping[str, NDArray[np.float32]],
    weights: Mapping[str, NDArray[np.float32]],
    row_size: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    smoothing: float,
) -> dict[str, NDArray[np.float32]]:
    """Return the smoothing divisor of each channel, float32 [K], by weight name.

    Args:
        layers: the layers.
        sizes: the size of each channel of an input, [K], by its name.
        weights: the weights [K, M] by their names.
        row_size: returns the size of each row of weights, [K].
        smoothing: share of the differences between channels that moves into the weights.
    """
    factors: dict[str, NDArray[np.float32]] = {}
    for group in group_by_shared_input(layers):
        inputs = [name for layer in group for name in layer.inputs]
        input_K = np.max([sizes[name] for name in inputs], axis=0)
        weight_K = np.max([row_size(weights[layer.weight]) for layer in group], axis=0)
        # A channel that is always 0 must not have a factor of 0.
        input_K, weight_K = (
            np.maximum(size_K, 1e-5 * size_K.max() + TINY) for size_K in (input_K, weight_K)
        )
        factor_K = input_K**smoothing / weight_K ** (1 - smoothing)
        factors |= {layer.weight: factor_K.astype(np.float32) for layer in group}
    return factors


def _largest(matrix_KM: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.abs(matrix_KM).max(axis=1), np.float32)


def _rms(matrix_KM: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.sqrt(np.square(matrix_KM).mean(axis=1)), np.float32)


def _reach(range_3K: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the largest distance from the mean of each channel, [K]."""
    low_K, high_K, mean_K = range_3K
    return np.asarray(np.maximum(high_K - mean_K, mean_K - low_K), np.float32)


def _by_column(
    writer: GraphWriter, name: str, matrix_KM: NDArray[np.float32], largest: int
) -> tuple[str, str]:
    """Quantize a matrix to int8 per column; return the names of the integers and the scales."""
    scale_M = (np.abs(matrix_KM).max(axis=0) + TINY) / largest
    integers_KM = np.round(matrix_KM / scale_M).astype(np.int8)
    return (
        writer.constant(tensor_name(name, "int8"), integers_KM),
        writer.constant(tensor_name(name, "columns"), scale_M.astype(np.float32)),
    )


def _weights(
    graph: onnx.GraphProto, layers: Sequence[LinearLayer]
) -> dict[str, NDArray[np.float32]]:
    names = {layer.weight for layer in layers}
    return {
        tensor.name: np.asarray(numpy_helper.to_array(tensor), np.float32)
        for tensor in graph.initializer
        if tensor.name in names
    }


def _replace(graph: onnx.GraphProto, writer: GraphWriter, removed: AbstractSet[str]) -> None:
    remaining = [tensor for tensor in graph.initializer if tensor.name not in removed]
    del graph.initializer[:], graph.node[:], graph.value_info[:]
    graph.initializer.extend((*remaining, *writer.constants.values()))
    graph.node.extend(writer.nodes)
