"""The structure of a graph, independent of its file format: nodes, attributes and constants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

HALF_SUFFIXES = (":fp16", ":fp32")  # of tensors whose type a conversion to float16 changes
Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StructureNode:
    """A node: its operator, its attributes by name, and the names of its tensors."""

    kind: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Attributes = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Structure:
    """A graph.

    Attributes:
        nodes: the nodes in topological order, without constants.
        constants: values of the constants, by tensor.
        constant_names: names of the constants in the ONNX graph, by tensor.
        outputs: the tensors that the graph returns.
    """

    nodes: Sequence[StructureNode]
    constants: Mapping[str, NDArray[Any]]
    constant_names: Mapping[str, str]
    outputs: Sequence[str]


def onnx_structure(path: Path) -> Structure:
    """Return the structure of an ONNX graph, in which float16 counts as float32."""
    graph = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes: list[StructureNode] = []
    for node in graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(node)
            continue
        nodes.append(
            StructureNode(
                kind=f"{node.domain}:{node.op_type}" if node.domain else node.op_type,
                name=node.name or node.output[0],
                inputs=tuple(node.input),
                outputs=tuple(node.output),
                attributes=tuple(sorted((item.name, _text(item)) for item in node.attribute)),
            )
        )
    return Structure(
        nodes=nodes,
        constants=constants,
        constant_names={name: name for name in constants},
        outputs=tuple(output.name for output in graph.output),
    )


def _constant(node: NodeProto) -> NDArray[Any]:
    value = helper.get_node_attr_value(node, node.attribute[0].name)
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _text(attribute: AttributeProto) -> str:
    """Return the value of an attribute as text, the same for float16 and float32."""
    value = helper.get_attribute_value(attribute)
    if attribute.name == "to" and value == TensorProto.FLOAT16:
        return str(int(TensorProto.FLOAT))
    if isinstance(value, TensorProto):
        array = numpy_helper.to_array(value)
        with np.errstate(over="ignore"):
            array = array.astype(np.float16) if array.dtype == np.float32 else array
        return f"{array.dtype} {array.tolist()}"
    text = str(value)  # of a subgraph, with the names of the tensors that it reads
    for suffix in HALF_SUFFIXES:
        text = text.replace(suffix, "")
    return text
