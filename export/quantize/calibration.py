"""How far each channel of the inputs of linear layers reaches, on rows of train.

The graph itself finds it: a maximum is added behind each input, so that what comes out of a call
is a few numbers and never the activations.

Shapes: K channels of a layer's input.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.export.diagnosis.reference_activations import short
from pipework.progress import Progress
from pipework.serve.engines.cpu_threads import cpu_limit

# Shapes: K inputs and M outputs of a layer.


@dataclass(frozen=True, kw_only=True)
class Linear:
    """One layer.

    Attributes:
        name: the path of its module.
        weight: the tensor of its weights, [K, M].
        inputs: the tensors that it reads; several where a family uses one layer again and again.
    """

    name: str
    weight: str
    inputs: tuple[str, ...]


def linears(graph: onnx.GraphProto) -> tuple[Linear, ...]:
    """Return the layers in the order in which they are first used."""
    uses: dict[str, list[NodeProto]] = {}
    for node in products(graph):
        uses.setdefault(node.input[1], []).append(node)
    return tuple(
        Linear(
            name=_module(nodes[0]),
            weight=weight,
            inputs=tuple(dict.fromkeys(node.input[0] for node in nodes)),
        )
        for weight, nodes in uses.items()
    )


def products(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes that multiply by constant weights [K, M]."""
    matrices = {one.name for one in graph.initializer if len(one.dims) == 2}  # noqa: PLR2004
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in matrices:
            yield node


def bound_together(layers: Sequence[Linear]) -> list[list[Linear]]:
    """Return the layers in groups; those that share an input are in one, and so on.

    What is done to the channels of an input is done to all layers that read it, and to all that
    those layers read elsewhere.
    """
    groups: list[list[Linear]] = []
    for layer in layers:
        met = [group for group in groups if any(set(one.inputs) & {*layer.inputs} for one in group)]
        groups = [group for group in groups if group not in met]
        groups.append([*(one for group in met for one in group), layer])
    return groups


def _module(node: NodeProto) -> str:
    """Return the path of the module that the exporter names a node after, or the node's name."""
    return short(".".join(node.name.strip("/").split("/")[:-1])) or node.name


Ranges = Mapping[str, NDArray[np.float32]]
BATCH = 8
ERRORS_ONLY = 3


def find_ranges(
    graph: Path,
    layers: Sequence[Linear],
    calls: Iterable[dict[str, NDArray[np.int64]]],
    progress: Progress,
) -> Ranges:
    """Return the largest magnitude of each channel, float32 [K], by the name of the input.

    Args:
        graph: a float32 graph.
        layers: its layers.
        calls: arrays of real rows, one call after the other.
        progress: hears of the calls done.
    """
    session, outputs = _observing(graph, layers)
    found: dict[str, NDArray[np.float32]] = {}
    for call in calls:
        largest = session.run([*outputs.values()], call)
        for name, largest_K in zip(outputs, largest, strict=True):
            found[name] = np.maximum(found.get(name, 0), largest_K)
        progress.advance(1)
    return found


def _observing(
    graph: Path, layers: Sequence[Linear]
) -> tuple[ort.InferenceSession, dict[str, str]]:
    """Return the graph with what it is asked for, by the name of the input."""
    model = onnx.load(graph)
    channels = {one.name: one.dims[0] for one in model.graph.initializer if one.dims}
    outputs: dict[str, str] = {}
    for layer in layers:
        flat = numpy_helper.from_array(np.array([-1, channels[layer.weight]]), f"{layer.weight}:KS")
        model.graph.initializer.append(flat)
        for name in layer.inputs:
            if name in outputs:
                continue
            outputs[name] = f"{name}:largest"
            model.graph.node.extend(
                (
                    helper.make_node("Abs", [name], [f"{name}:abs"]),
                    helper.make_node("Reshape", [f"{name}:abs", flat.name], [f"{name}:flat"]),
                    helper.make_node(
                        "ReduceMax", [f"{name}:flat"], [outputs[name]], axes=[0], keepdims=0
                    ),
                )
            )
            model.graph.output.append(
                helper.make_tensor_value_info(outputs[name], TensorProto.FLOAT, None)
            )
    options = ort.SessionOptions()
    options.intra_op_num_threads = cpu_limit()
    options.log_severity_level = ERRORS_ONLY
    options.enable_cpu_mem_arena = False  # as in the server: it keeps memory for every shape
    options.enable_mem_pattern = False
    serialized = model.SerializeToString()
    return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"]), outputs
