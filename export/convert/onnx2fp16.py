"""An ONNX graph becomes one that computes in float16 where that holds, and in float32 elsewhere.

Inputs and outputs keep their types. Where two neighbours differ, a cast stands between them, one
for each tensor. `pipework.export.convert.fp16_overflow` says what stays in float32.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from pipework.export.convert.fp16_overflow import Feeds, floats, leaving, touches
from pipework.export.diagnosis.reference_activations import short
from pipework.run_folder.engine_record import Layer, Precision

FLOAT, HALF = int(TensorProto.FLOAT), int(TensorProto.FLOAT16)
SUFFIX = {FLOAT: ":fp32", HALF: ":fp16"}


def onnx_to_fp16(graph: Path, out: Path, feeds: Feeds) -> tuple[Layer, ...]:
    """Write `out` and return the layers that stay in float32, by their module's path.

    Args:
        graph: a float32 graph.
        out: where the other is written.
        feeds: real rows, as the arrays of calls of the graph; what they reach decides.
    """
    model = onnx.load(graph)
    _hoist(model)
    floating = floats(model)
    kept = leaving(model, feeds, floating)
    names = dict.fromkeys(_module(model.graph.node[place]) for place in sorted(kept))
    _convert(model, kept, floating)
    onnx.save(model, out)
    return tuple(Layer(name=name, precision=Precision.FP32, gain=0) for name in names)


def _module(node: NodeProto) -> str:
    """Return the path of the module that a node was traced from, or its name where it has none.

    The exporter names nodes by scopes: /model/bert/encoder/layer.0/output/dense/MatMul.
    """
    scopes = node.name.strip("/").split("/")[:-1]
    return short(".".join(scopes)) or node.name or node.output[0]


def _hoist(model: onnx.ModelProto) -> None:
    """Make initializers of constant nodes, so that there is one kind of constant."""
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].type == onnx.AttributeProto.TENSOR:
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
        else:
            model.graph.node.append(node)


def _convert(model: onnx.ModelProto, kept: set[int], floating: set[str]) -> None:
    """Give each node but the kept its float16 inputs and outputs, with casts in between."""
    nodes = list(model.graph.node)
    types = {
        name: FLOAT if place in kept else HALF
        for place, node in enumerate(nodes)
        for name in node.output
        if name in floating
    }
    constants = {one.name: one for one in model.graph.initializer if one.name in floating}
    outputs = [one.name for one in model.graph.output if types.get(one.name) == HALF]
    typed = _Typed(types, constants)
    converted: list[NodeProto] = []
    for place, node in enumerate(nodes):
        wanted = FLOAT if place in kept else HALF
        for reader in _readers(node):
            for number, name in enumerate(reader.input):
                if name in floating:
                    reader.input[number] = typed.tensor(name, wanted)
        if touches(node, floating) and place not in kept:
            _give_half(node)
        converted += [*typed.taken_casts(), node]
    _rename(converted, outputs)
    casts = [_cast(_inner(name), name, FLOAT) for name in outputs]
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend([*converted, *casts])
    others = [one for one in model.graph.initializer if one.name not in constants]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*others, *typed.constants])


class _Typed:
    """The tensors of a graph under a name for each type, cast where a type is asked for."""

    def __init__(self, types: dict[str, int], constants: dict[str, TensorProto]) -> None:
        self._types = types
        self._given = constants
        self._made: set[str] = set()
        self._casts: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def tensor(self, name: str, wanted: int) -> str:
        """Return the name of a tensor in a type."""
        if self._types.get(name) == wanted:
            return name
        named = f"{name}{SUFFIX[wanted]}"
        if named not in self._made:
            self._made.add(named)
            if name in self._given:
                self.constants.append(_constant(self._given[name], named, wanted))
            else:
                self._casts.append(_cast(name, named, wanted))
        return named

    def taken_casts(self) -> list[NodeProto]:
        """Return the casts that were made since this was last asked."""
        casts, self._casts = self._casts, []
        return casts


def _readers(node: NodeProto) -> Iterator[NodeProto]:
    """Yield a node and those of the graphs inside it, which read tensors from outside too."""
    yield node
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            for inner in attribute.g.node:
                yield from _readers(inner)


def _give_half(node: NodeProto) -> None:
    """Change the attributes that say that a node gives float32."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
            attribute.i = HALF
        elif attribute.type == attribute.TENSOR and attribute.t.data_type == FLOAT:
            attribute.t.CopyFrom(_constant(attribute.t, attribute.t.name, HALF))


def _constant(tensor: TensorProto, name: str, wanted: int) -> TensorProto:
    values = numpy_helper.to_array(tensor)
    if wanted == HALF:
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    return numpy_helper.from_array(values, name)


def _inner(output: str) -> str:
    return f"{output}{SUFFIX[HALF]}"


def _rename(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> None:
    """Free the names of the graph's outputs for what is cast to their types."""
    for node in nodes:
        for names in (node.input, node.output):
            for number, name in enumerate(names):
                if name in outputs:
                    names[number] = _inner(name)


def _cast(name: str, output: str, wanted: int) -> NodeProto:
    return helper.make_node("Cast", [name], [output], name=f"cast to {output}", to=wanted)
