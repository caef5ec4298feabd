"""Convert an ONNX graph to float16, except for nodes that overflow or lose too much precision.

Inputs and outputs keep their types. Casts connect float16 and float32 nodes, one per tensor.
`pipework.export.convert.fp16_overflow` selects the nodes that stay in float32.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.export.convert.checkpoint2onnx import module_path
from pipework.export.convert.fp16_overflow import (
    Feeds,
    find_fp32_nodes,
    float32_tensors,
    uses_float32,
)
from pipework.export.convert.prune_last_layer import readers_of
from pipework.run_folder.engine_record import FallbackLayer, Precision

FLOAT, HALF = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
SUFFIX = {FLOAT: ":fp32", HALF: ":fp16"}


def onnx_to_fp16(graph: Path, out: Path, feeds: Feeds) -> tuple[FallbackLayer, ...]:
    """Write the float16 graph to `out` and return the layers that stay in float32.

    Args:
        graph: path of a float32 graph.
        out: path of the float16 graph.
        feeds: input arrays of real rows; the values they reach select the float32 nodes.
    """
    model = onnx.load(graph)
    _constants_to_initializers(model)
    floating = float32_tensors(model)
    fp32_nodes = find_fp32_nodes(model, feeds, floating)
    nodes = (model.graph.node[index] for index in sorted(fp32_nodes))
    names = dict.fromkeys(module_path(node.name) or node.name or node.output[0] for node in nodes)
    _convert(model, fp32_nodes, floating)
    onnx.save(model, out)
    return tuple(FallbackLayer(name=name, precision=Precision.FP32, gain=0) for name in names)


def _constants_to_initializers(model: onnx.ModelProto) -> None:
    """Replace constant nodes by initializers."""
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].type == onnx.AttributeProto.TENSOR:
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
        else:
            model.graph.node.append(node)


def _convert(model: onnx.ModelProto, fp32_nodes: set[int], floating: set[str]) -> None:
    """Convert all nodes except `fp32_nodes` to float16 and insert the casts."""
    nodes = list(model.graph.node)
    types = {
        name: FLOAT if index in fp32_nodes else HALF
        for index, node in enumerate(nodes)
        for name in node.output
        if name in floating
    }
    constants = {
        tensor.name: tensor for tensor in model.graph.initializer if tensor.name in floating
    }
    outputs = [output.name for output in model.graph.output if types.get(output.name) == HALF]
    typed = _Typed(types, constants)
    converted: list[NodeProto] = []
    for index, node in enumerate(nodes):
        type_ = FLOAT if index in fp32_nodes else HALF
        for reader in readers_of(node):
            for number, name in enumerate(reader.input):
                if name in floating:
                    reader.input[number] = typed.tensor(name, type_)
        if uses_float32(node, floating) and index not in fp32_nodes:
            _set_half_outputs(node)
        converted += [*typed.taken_casts(), node]
    _rename(converted, outputs)
    casts = [_cast(_inner(name), name, FLOAT) for name in outputs]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend([*converted, *casts])
    others = [tensor for tensor in model.graph.initializer if tensor.name not in constants]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*others, *typed.constants])


class _Typed:
    """Names of a graph's tensors by type; creates a cast on first use of another type."""

    def __init__(self, types: dict[str, int], constants: dict[str, TensorProto]) -> None:
        self._types = types
        self._constants = constants
        self._names: set[str] = set()
        self._casts: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def tensor(self, name: str, type_: int) -> str:
        """Return the name of a tensor converted to a type."""
        if self._types.get(name) == type_:
            return name
        converted = f"{name}{SUFFIX[type_]}"
        if converted not in self._names:
            self._names.add(converted)
            if name in self._constants:
                self.constants.append(_constant(self._constants[name], converted, type_))
            else:
                self._casts.append(_cast(name, converted, type_))
        return converted

    def taken_casts(self) -> list[NodeProto]:
        """Return the casts created since the last call."""
        casts, self._casts = self._casts, []
        return casts


def _set_half_outputs(node: NodeProto) -> None:
    """Change the attributes that set a float32 output type to float16."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
            attribute.i = HALF
        elif attribute.type == attribute.TENSOR and attribute.t.data_type == FLOAT:
            attribute.t.CopyFrom(_constant(attribute.t, attribute.t.name, HALF))


def _constant(tensor: TensorProto, name: str, type_: int) -> TensorProto:
    values = numpy_helper.to_array(tensor)
    if type_ == HALF:
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    return numpy_helper.from_array(values, name)


def _inner(output: str) -> str:
    return f"{output}{SUFFIX[HALF]}"


def _rename(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> None:
    """Rename the float16 tensors at the graph's outputs; the casts take their names."""
    for node in nodes:
        for names in (node.input, node.output):
            for number, name in enumerate(names):
                if name in outputs:
                    names[number] = _inner(name)


def _cast(name: str, output: str, type_: int) -> NodeProto:
    return helper.make_node("Cast", [name], [output], name=f"cast to {output}", to=type_)
