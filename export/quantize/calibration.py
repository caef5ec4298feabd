"""Calibrate int8: the range of each input channel of the linear layers, on train rows.

The ranges are computed by nodes added to the graph, so a call returns a few numbers and not the
activations.

Shapes: K inputs and M outputs of a layer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.export.convert.checkpoint2onnx import module_path
from pipework.machine import cpu_limit
from pipework.progress import Progress
from pipework.serve.engines.onnxruntime import CPU, session_options

Ranges = Mapping[str, NDArray[np.float32]]
BATCH = 8


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
    """Return the lowest, highest, mean and root mean square value of each channel by input name.

    Args:
        graph: path of a float32 graph.
        layers: linear layers of the graph.
        calls: input arrays of real rows.
        progress: receives the finished calls.

    Returns:
        A float32 array [4, K] for each input. Calls have the same weight in means.
    """
    session, outputs = _open_with_ranges(graph, layers)
    ranges: dict[str, NDArray[np.float32]] = {}
    for count, call in enumerate(calls, start=1):
        limits = session.run([*outputs.values()], call)
        for name, limits_4K in zip(outputs, limits, strict=True):
            before_4K = ranges.setdefault(name, limits_4K)
            low_K = np.minimum(before_4K[0], limits_4K[0])
            high_K = np.maximum(before_4K[1], limits_4K[1])
            means_2K = before_4K[2:] + (limits_4K[2:] - before_4K[2:]) / count
            ranges[name] = np.stack((low_K, high_K, *means_2K))
        progress.advance(1)
    for range_4K in ranges.values():
        range_4K[3] = np.sqrt(range_4K[3])
    return ranges


def _open_with_ranges(
    graph: Path, layers: Sequence[LinearLayer]
) -> tuple[ort.InferenceSession, dict[str, str]]:
    """Open the graph with range outputs; return their names by input name."""
    model = onnx.load(graph)
    channels = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    outputs: dict[str, str] = {}
    for layer in layers:
        flat = numpy_helper.from_array(np.array([-1, channels[layer.weight]]), f"{layer.weight}:KS")
        model.graph.initializer.append(flat)
        for name in layer.inputs:
            if name in outputs:
                continue
            outputs[name] = f"{name}:limits"
            low, high, mean = f"{name}:low", f"{name}:high", f"{name}:mean"
            squares, square = f"{name}:squares", f"{name}:square"
            model.graph.node.extend(
                (
                    helper.make_node("Reshape", [name, flat.name], [f"{name}:flat"]),
                    helper.make_node("ReduceMin", [f"{name}:flat"], [low], axes=[0]),
                    helper.make_node("ReduceMax", [f"{name}:flat"], [high], axes=[0]),
                    helper.make_node("ReduceMean", [f"{name}:flat"], [mean], axes=[0]),
                    helper.make_node("Mul", [f"{name}:flat", f"{name}:flat"], [squares]),
                    helper.make_node("ReduceMean", [squares], [square], axes=[0]),
                    helper.make_node("Concat", [low, high, mean, square], [outputs[name]], axis=0),
                )
            )
            model.graph.output.append(
                helper.make_tensor_value_info(outputs[name], TensorProto.FLOAT, None)
            )
    options = session_options(cpu_limit())
    return ort.InferenceSession(model.SerializeToString(), options, providers=[CPU]), outputs
