"""The linear layers of a graph: its matrix products by constant weights, which int8 is for.

Shapes: K inputs and M outputs of a layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto

from pipework.export.diagnosis.reference_activations import short


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
