"""Calibrate int8: ranges and products of the input channels of the linear layers, on train rows.

They are computed by nodes added to the graph, so a call does not return the activations.

Shapes: K inputs and M outputs of a layer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.errors import CheckFailedError
from pipework.export.convert.checkpoint2onnx import module_path
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.serve.engines.onnxruntime import CPU, session_options

Ranges = Mapping[str, NDArray[np.float32]]
Moments = Mapping[str, NDArray[np.float32]]
BATCH = 8
MOMENT_BYTES = 2**28  # of a pass; a model with 24 layers of 1,024 takes eight passes


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """A linear layer of a graph.

    Attributes:
        name: path of its module.
        weight: name of its weights, [K, M].
        inputs: names of the tensors that it reads; several if the family shares the layer.
    """

    name: str
    weight: str
    inputs: tuple[str, ...]


def linear_layers(graph: onnx.GraphProto) -> tuple[LinearLayer, ...]:
    """Return the linear layers in the order of their first use."""
    uses: dict[str, list[NodeProto]] = {}
    for node in matmul_nodes(graph):
        uses.setdefault(node.input[1], []).append(node)
    return tuple(
        LinearLayer(
            name=module_path(nodes[0].name) or nodes[0].name,
            weight=weight,
            inputs=tuple(dict.fromkeys(node.input[0] for node in nodes)),
        )
        for weight, nodes in uses.items()
    )


def matmul_nodes(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes that multiply by constant weights [K, M]."""
    matrices = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}  # noqa: PLR2004
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            yield node


def group_by_shared_input(layers: Sequence[LinearLayer]) -> list[list[LinearLayer]]:
    """Return the layers in groups that are connected by shared inputs."""
    # Scaling the channels of an input affects all layers that read it and all their other inputs.
    groups: list[list[LinearLayer]] = []
    for layer in layers:
        inputs = set(layer.inputs)
        connected = [
            group for group in groups if any(inputs & set(member.inputs) for member in group)
        ]
        groups = [group for group in groups if group not in connected]
        groups.append([*(member for group in connected for member in group), layer])
    return groups


def find_ranges(
    graph: Path,
    layers: Sequence[LinearLayer],
    calls: Iterable[dict[str, NDArray[np.int64]]],
    progress: Progress,
) -> Ranges:
    """Return the lowest, highest and mean value of each channel, float32 [3, K], by input name.

    Args:
        graph: path of a float32 graph.
        layers: linear layers of the graph.
        calls: input arrays of real rows.
        progress: receives the finished calls.
    """
    session, outputs = _open_with(graph, layers, _range_nodes)
    ranges: dict[str, NDArray[np.float32]] = {}
    for count, call in enumerate(calls, start=1):
        limits = session.run([*outputs.values()], call)
        for name, limits_3K in zip(outputs, limits, strict=True):
            low_K, high_K, mean_K = ranges.get(name, limits_3K)
            ranges[name] = np.stack(
                (
                    np.minimum(low_K, limits_3K[0]),
                    np.maximum(high_K, limits_3K[1]),
                    mean_K + (limits_3K[2] - mean_K) / count,  # calls have the same weight
                )
            )
        progress.advance(1)
    return ranges


def moment_passes(graph: onnx.GraphProto, layers: Sequence[LinearLayer]) -> list[list[LinearLayer]]:
    """Return the layers in groups whose products of inputs fit into `MOMENT_BYTES` together."""
    widths = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    passes: list[list[LinearLayer]] = []
    used = 0
    for group in group_by_shared_input(layers):  # they have the same factors
        inputs = {name for layer in group for name in layer.inputs}
        needed = 4 * len(inputs) * widths[group[0].weight] ** 2
        if not passes or used + needed > MOMENT_BYTES:
            passes.append([])
            used = 0
        used += needed
        passes[-1] += group
    return passes


def find_moments(
    graph: Path,
    layers: Sequence[LinearLayer],
    calls: Sequence[dict[str, NDArray[np.int64]]],
    progress: Progress,
) -> Moments:
    """Return the products of all channels of an input, summed over tokens, float32 [K, K], by name.

    Args:
        graph: path of a float32 graph.
        layers: linear layers of the graph.
        calls: input arrays of real rows, without padding.
        progress: receives the finished calls.

    Raises:
        CheckFailedError: a channel is infinite or not a number.
    """
    session, outputs = _open_with(graph, layers, _moment_nodes)
    moments: dict[str, NDArray[np.float32]] = {}
    for call in calls:
        found = session.run([*outputs.values()], call)
        for name, products_KK in zip(outputs, found, strict=True):
            moments[name] = moments[name] + products_KK if name in moments else products_KK
        progress.advance(1)
    for name, products_KK in moments.items():
        if not np.isfinite(products_KK).all():
            message = f"the tensor {name} of the float32 graph has values that are not finite"
            raise CheckFailedError(message, "use another precision")
    return moments


def _range_nodes(name: str, flat: str) -> list[NodeProto]:
    low, high, mean = f"{name}:low", f"{name}:high", f"{name}:mean"
    return [
        helper.make_node("ReduceMin", [flat], [low], axes=[0]),
        helper.make_node("ReduceMax", [flat], [high], axes=[0]),
        helper.make_node("ReduceMean", [flat], [mean], axes=[0]),
        helper.make_node("Concat", [low, high, mean], [f"{name}:found"], axis=0),
    ]


def _moment_nodes(name: str, flat: str) -> list[NodeProto]:
    columns = f"{name}:columns"
    return [
        helper.make_node("Transpose", [flat], [columns], perm=[1, 0]),
        helper.make_node("MatMul", [columns, flat], [f"{name}:found"]),
    ]


def _open_with(
    graph: Path, layers: Sequence[LinearLayer], nodes: Callable[[str, str], list[NodeProto]]
) -> tuple[ort.InferenceSession, dict[str, str]]:
    """Open the graph with an output for each input of a layer; return their names by input name.

    `nodes` returns the nodes that compute the output NAME:found from an input, [S, K].
    """
    model = onnx.load(graph)
    channels = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    outputs: dict[str, str] = {}
    for layer in layers:
        flat = numpy_helper.from_array(np.array([-1, channels[layer.weight]]), f"{layer.weight}:KS")
        model.graph.initializer.append(flat)
        for name in layer.inputs:
            if name in outputs:
                continue
            outputs[name] = f"{name}:found"
            reshape = helper.make_node("Reshape", [name, flat.name], [f"{name}:flat"])
            model.graph.node.extend((reshape, *nodes(name, f"{name}:flat")))
            model.graph.output.append(
                helper.make_tensor_value_info(outputs[name], TensorProto.FLOAT, None)
            )
    options = session_options(cpu_limit())
    return ort.InferenceSession(model.SerializeToString(), options, providers=[CPU]), outputs
